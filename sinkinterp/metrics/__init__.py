"""Pure functions of attention calls, residuals and arrays. They know no model."""
