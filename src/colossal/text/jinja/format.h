// Python's two kinds of formatting: "%s of %d" % (...) and "{} of {:d}".format(...).
#pragma once
#include "colossal/text/jinja/value.h"

namespace colossal::text::jinja {

class Interpreter;

/// Returns text % value. Supported: %s %r %a %c %d %i %u %o %x %X %e %E %f %F %g %G %%, flags, width, precision and
/// (keys).
Value format_percent(Budget& budget, const String& text, const Value& value);
/// Returns text.format(arguments). Supported: numbered and named fields, .attributes and [elements], !r !s !a, the
/// format specification.
Value format_braces(Interpreter& interpreter, const String& text, const Arguments& arguments);

/// Formats a float with `precision` digits as C's printf does. `kind` is one of e f g E F G.
std::string print_real(double number, char kind, int precision, bool alternate = false);

}  // namespace colossal::text::jinja
