"""The measurements of a model: numbers, tables, figures. A report needs no model to be read, shown or saved."""
