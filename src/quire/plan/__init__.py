"""How the memory is divided: layers → kinds → pages → sheets → limits. One plan, one bound."""
