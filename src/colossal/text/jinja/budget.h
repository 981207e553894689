// Limits on the resources of a template, and its errors.
//
// A template comes with a model and is untrusted. It may loop forever, build texts of any size or nest without bound.
// Code that works for a template first takes the resources from a Budget, which throws a Failure when they are used up.
#pragma once
#include <cstdint>
#include <exception>
#include <string>

#include "colossal/base/error.h"
#include "colossal/text/template_limits.h"

namespace colossal::text::jinja {

using Limits = TemplateLimits;

/// The reason why a template cannot be read or rendered. The names are Python's exceptions, as jinja2 raises them.
enum class Cause {
  Syntax,        ///< TemplateSyntaxError: the template cannot be parsed
  Assertion,     ///< TemplateAssertionError: the template follows the grammar but is invalid
  Refused,       ///< raise_exception: the template itself refuses
  Undefined,     ///< UndefinedError
  Runtime,       ///< TemplateRuntimeError
  Security,      ///< SecurityError: forbidden by the sandbox
  Argument,      ///< FilterArgumentError
  Type,          ///< TypeError
  Value,         ///< ValueError
  Overflow,      ///< OverflowError; also integers beyond 64 bits, which Python supports
  ZeroDivision,  ///< ZeroDivisionError
  Index,         ///< IndexError
  Key,           ///< KeyError
  Unsupported,   ///< a feature of jinja2 that this interpreter does not support
  Limit,         ///< a limit of Limits is exceeded
};

const char* cause_name(Cause cause);

/// The exception that the interpreter throws. ChatTemplate turns it into a TemplateError with the template's name.
struct Failure : std::exception {
  Failure(Cause what, std::string text, int at = 0) : cause(what), message(std::move(text)), line(at) {}
  const char* what() const noexcept override { return message.c_str(); }
  Cause cause;
  std::string message;
  int line;  ///< line of the template, from 1; 0 = not known yet
};

template <class... Parts>
[[noreturn]] void fail(Cause cause, const Parts&... parts) {
  throw Failure(cause, concat(parts...));
}

/// The resources that one rendering may still use.
class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits), steps_(limits.steps), bytes_(limits.bytes) {}
  const Limits& limits() const { return limits_; }
  void step(int64_t count = 1) {
    steps_ -= count;
    if (steps_ < 0) fail_steps();
  }
  /// Takes the steps for a scan of all characters of a text of `bytes` bytes.
  void step_characters(size_t bytes) { step(static_cast<int64_t>(bytes / 4)); }
  /// Takes `count` bytes. The caller calls it before it creates a text or list of that size.
  void take_bytes(int64_t count) {
    if (count > bytes_) fail_bytes();
    bytes_ -= count;
  }
  /// Takes the bytes of `count` elements of `size` bytes each; the product may overflow.
  void take_bytes(int64_t count, int64_t size) {
    if (count > 0 && size > bytes_ / count) fail_bytes();
    take_bytes(count * size);
  }
  /// A nesting level that is open while the object exists.
  class Level {
   public:
    explicit Level(Budget& budget) : budget_(budget) {
      if (++budget_.depth_ > budget_.limits_.depth) budget_.fail_depth();
    }
    ~Level() { --budget_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Budget& budget_;
  };

 private:
  [[noreturn]] void fail_steps() const;
  [[noreturn]] void fail_bytes() const;
  [[noreturn]] void fail_depth();
  Limits limits_;
  int64_t steps_, bytes_;
  int depth_ = 0;
};

}  // namespace colossal::text::jinja
