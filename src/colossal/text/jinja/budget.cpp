#include "colossal/text/jinja/budget.h"

namespace colossal::text::jinja {

const char* cause_name(Cause cause) {
  switch (cause) {
    case Cause::Syntax:
      return "TemplateSyntaxError";
    case Cause::Assertion:
      return "TemplateAssertionError";
    case Cause::Refused:
      return "raise_exception";
    case Cause::Undefined:
      return "UndefinedError";
    case Cause::Runtime:
      return "TemplateRuntimeError";
    case Cause::Security:
      return "SecurityError";
    case Cause::Argument:
      return "FilterArgumentError";
    case Cause::Type:
      return "TypeError";
    case Cause::Value:
      return "ValueError";
    case Cause::Overflow:
      return "OverflowError";
    case Cause::ZeroDivision:
      return "ZeroDivisionError";
    case Cause::Index:
      return "IndexError";
    case Cause::Key:
      return "KeyError";
    case Cause::Unsupported:
      return "unsupported";
    case Cause::Limit:
      return "limit";
  }
  return "unknown";
}

void Budget::fail_steps() const {
  fail(Cause::Limit, "rendering must end within ", limits_.steps, " steps (Limits::steps)");
}

void Budget::fail_bytes() const {
  fail(Cause::Limit, "the texts and lists that a rendering makes must stay within ", limits_.bytes,
       " bytes (Limits::bytes)");
}

void Budget::fail_depth() {
  --depth_;  // a constructor that throws has no destructor call, so the level is undone here
  fail(Cause::Limit, "expressions, blocks and calls must be nested at most ", limits_.depth,
       " deep while they are evaluated (Limits::depth)");
}

}  // namespace colossal::text::jinja
