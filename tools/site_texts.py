"""A griffe extension that completes the API reference where the stub of the compiled module has only summaries.

The stub has only the first paragraph of each docstring, for editors; `help()` and the reference have all of it. Griffe
ignores functions that a stub defines only by overloads. The options of a `TypedDict` are listed individually.
"""

from __future__ import annotations

import importlib
import inspect
import re
import types
from typing import Any

import griffe

PACKAGE, COMPILED, OPERATIONS = "max_weights", "_core", "graph.ops"


class CompiledTexts(griffe.Extension):
    """Completes the compiled module from its state at run time, and signatures by their options."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Show `**options: Unpack[TypedDict]` as the individual options."""
        unpack(func)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Show examples as code: griffe reads sections of this name as such."""
        examples_of(obj)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Do so once the package is loaded."""
        if pkg.path == PACKAGE:
            complete(pkg[COMPILED], importlib.import_module(f"{PACKAGE}.{COMPILED}"))
            for module in pkg[OPERATIONS].members.values():
                if isinstance(module, griffe.Module):
                    made_by_functions(module, importlib.import_module(module.path))


def unpack(function: griffe.Function) -> None:
    """Put the options of a `TypedDict` in the place of the parameter that takes them all."""
    for parameter in list(function.parameters):
        annotation = parameter.annotation
        if not isinstance(annotation, griffe.ExprSubscript) or annotation.canonical_path != "typing.Unpack":
            continue
        options = function.modules_collection[str(getattr(annotation.slice, "canonical_path", ""))]
        del function.parameters[parameter.name]
        shown = {name: one for kind in (*reversed(options.mro()), options) for name, one in kind.attributes.items()}
        for name, one in shown.items():
            annotation = one.annotation
            default: str | None = "..."
            if isinstance(annotation, griffe.ExprSubscript) and annotation.canonical_path == "typing.Required":
                annotation, default = annotation.slice, None
            keyword = griffe.ParameterKind.keyword_only
            function.parameters.add(griffe.Parameter(name, annotation=annotation, kind=keyword, default=default))


def made_by_functions(module: griffe.Module, value: types.ModuleType) -> None:
    """Show attributes that other functions return as functions: most graph operations are made like this."""
    for name, function in vars(value).items():
        member = module.members.get(name)
        if isinstance(member, griffe.Function) and inspect.isfunction(function):  # `ops` completes its texts
            member.docstring = griffe.Docstring(inspect.getdoc(function) or "", parent=member)
            examples_of(member)
            continue
        if not inspect.isfunction(function) or not isinstance(member, griffe.Attribute | None):
            continue
        kinds = {one.name: one for one in griffe.ParameterKind}
        signature = inspect.signature(function)
        parameters = griffe.Parameters(
            *(
                griffe.Parameter(
                    one.name,
                    annotation=None if one.annotation is one.empty else str(one.annotation),
                    kind=kinds[one.kind.name.lower()],
                    default=None if one.default is one.empty else repr(one.default),
                )
                for one in signature.parameters.values()
            )
        )
        made = griffe.Function(name, parameters=parameters, returns=str(signature.return_annotation))
        made.lineno = member.lineno if member else None
        if text := inspect.getdoc(function):
            made.docstring = griffe.Docstring(text, parent=made)
            examples_of(made)
        module.set_member(name, made)


def examples_of(described: griffe.Object) -> None:
    """Give the section of examples the name that griffe knows."""
    if described.docstring is not None:
        described.docstring.value = re.sub(r"(?m)^Example:$", "Examples:", described.docstring.value)


def line(member: griffe.Object | griffe.Alias) -> int:
    """The position of a member in its file."""
    return (member.alias_lineno if isinstance(member, griffe.Alias) else member.lineno) or 0


def complete(owner: griffe.Module | griffe.Class, value: object) -> None:
    """Copy the docstrings of the members of `value` to the members of `owner`, recursively."""
    for name, overloads in owner.overloads.items():
        if name not in owner.members:
            first = overloads[0]
            made = griffe.Function(name, parameters=first.parameters, returns=first.returns, lineno=first.lineno)
            made.overloads = overloads
            for overload in overloads:
                unpack(overload)
            owner.set_member(name, made)
    new = owner.members.get("__new__")
    if isinstance(owner, griffe.Class) and isinstance(new, griffe.Function) and "__init__" not in owner.members:
        # The class itself documents its constructor, as for Python classes.
        owner.members["__init__"] = owner.members.pop("__new__")
        new.name = "__init__"
    owner.members = dict(sorted(owner.members.items(), key=lambda member: line(member[1])))
    for name, member in owner.members.items():
        if isinstance(member, griffe.Module):  # the stub's files are many, the compiled module is one
            complete(member, value)
            continue
        found = inspect.getattr_static(value, name, None)
        # Python's generic docstrings of `len()` and the like say nothing about this class.
        if isinstance(member, griffe.Alias) or found is None or isinstance(found, types.WrapperDescriptorType):
            continue
        if isinstance(member, griffe.Class):
            complete(member, found)
        if isinstance(member, griffe.Class | griffe.Function) or inspect.isgetsetdescriptor(found):
            text = inspect.getdoc(getattr(found, "__func__", found))
            member.docstring = griffe.Docstring(text, parent=member) if text else None
            examples_of(member)
