// Python's two ways to format: "%s of %d" % (...) and "{} of {:d}".format(...).
#pragma once
#include "colossal/text/jinja/value.h"

namespace colossal::text::jinja {

class Interpreter;

/// text % value: of %s %r %a %c %d %i %u %o %x %X %e %E %f %F %g %G %%, with flags, width, precision and (keys).
Value format_percent(Budget& budget, const String& text, const Value& value);
/// text.format(arguments): numbered and named fields, .attributes and [elements], !r !s !a, the format specification.
Value format_braces(Interpreter& interpreter, const String& text, const Arguments& arguments);

/// A float with `precision` digits as C's printf writes it; kind is one of e f g and their capitals.
std::string print_real(double number, char kind, int precision, bool alternate = false);

}  // namespace colossal::text::jinja
