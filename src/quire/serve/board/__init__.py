"""The Grafana board: panels as data, and the file that is made of them."""
