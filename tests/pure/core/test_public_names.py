"""What `import quire` offers."""

from __future__ import annotations

import quire


def test_the_package_lists_its_public_names_and_has_each_of_them() -> None:
    assert dir(quire) == sorted(quire.__all__)
    assert {*quire._MODULES, "__version__"} == set(quire.__all__)
    for name in set(quire.__all__) - {name for name, module in quire._MODULES.items() if module == "quire.llm"}:
        assert getattr(quire, name) is not None
    assert quire.Settings.__module__ == "quire.plan.settings"


def test_another_name_is_an_error() -> None:
    assert not hasattr(quire, "Engine")
