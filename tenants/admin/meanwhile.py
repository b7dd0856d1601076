"""A form of the back office overwrites nothing that another user changed since it was opened.

A browser sends all fields of a form, also those that nobody touched. Beside each field goes what it held when the form
was opened (Django's hidden initial values): what is as it was then keeps what the row has by now, and a field that both
changed is an error that says so, and that saving once more overrules.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import Manager


class Meanwhile(forms.ModelForm):  # type: ignore[type-arg]  # generic for checkers only
    """Mixed into the forms of rows that exist. The row has to be read under the lock that it is written under."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is None:
            return
        stored = {field.name for field in (*self._meta.model._meta.fields, *self._meta.model._meta.many_to_many)}
        for name, field in self.fields.items():
            secret = field.disabled or isinstance(field.widget, forms.PasswordInput)  # what is not to be in the page
            field.show_hidden_initial = name in stored and not secret

    def _clean_fields(self) -> None:
        super()._clean_fields()  # type: ignore[misc]  # unknown to the stubs
        for name, field in self.fields.items():
            if self.instance.pk is not None and field.show_hidden_initial:
                self._compare(name, field)

    def _compare(self, name: str, field: forms.Field) -> None:
        bound, hidden = self[name], field.hidden_widget()
        at = bound.html_initial_name
        if hidden.value_omitted_from_data(self.data, self.files, at):
            return  # not sent by this page
        sent, typed, now = hidden.value_from_datadict(self.data, self.files, at), bound.data, bound.initial
        if not field.has_changed(now, sent):
            return
        try:
            mine = field.has_changed(field.to_python(sent), typed)
        except ValidationError:
            mine = True  # what it held no longer exists
        if not mine:
            self.errors.pop(name, None)
            value = getattr(self.instance, name)
            self.cleaned_data[name] = value.all() if isinstance(value, Manager) else value
        elif field.has_changed(now, typed) and name not in self.errors:
            shown = getattr(self.instance, name) if isinstance(field, forms.ModelChoiceField) else bound.initial
            self.add_error(name, f"Another user changed this to “{shown}” meanwhile. Save again to replace that.")
            self._sees(at, hidden, field.prepare_value(now))

    def _sees(self, at: str, hidden: Any, now: Any) -> None:
        """The page that is shown again holds what the row has now."""
        seen: Any = self.data.copy()  # type: ignore[attr-defined]  # a QueryDict
        if isinstance(hidden, forms.MultiWidget):
            for number, (part, value) in enumerate(zip(hidden.widgets, hidden.decompress(now) or (), strict=False)):
                seen[f"{at}_{number}"] = part.format_value(value) or ""
        elif isinstance(hidden, forms.MultipleHiddenInput):
            seen.setlist(at, [str(value) for value in now or ()])
        else:
            seen[at] = hidden.format_value(now) or ""
        self.data = seen
