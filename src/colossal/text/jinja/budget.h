// What a template may use, and how it fails.
//
// A template comes with a model, from anybody: it may loop without end, build texts of any size or nest without bound.
// Whoever works for it takes what is needed from a Budget first, and stops with a Failure where nothing is left.
#pragma once
#include <cstdint>
#include <exception>
#include <string>

#include "colossal/base/error.h"

namespace colossal::text::jinja {

struct Limits {
  int64_t template_bytes = int64_t{1} << 20;  ///< of a template's own text
  int64_t steps = 8'000'000;                  ///< nodes evaluated and items walked in one rendering: a second
  int64_t bytes = int64_t{128} << 20;         ///< of all texts and lists that one rendering makes, those dropped too
  int64_t output_bytes = int64_t{64} << 20;   ///< of what is rendered
  int nesting = 250;                          ///< of expressions and blocks within each other in the template's text
  int depth = 1200;                           ///< of what is evaluated within each other, calls of macros included
};

/// Why a template cannot be read or rendered. The names are those of Python's exceptions, as jinja2 raises them.
enum class Cause {
  Syntax,        ///< TemplateSyntaxError: while the template is read
  Assertion,     ///< TemplateAssertionError: while the template is read, of what its grammar allows
  Refused,       ///< raise_exception: the template itself refuses
  Undefined,     ///< UndefinedError
  Runtime,       ///< TemplateRuntimeError
  Security,      ///< SecurityError: what the sandbox forbids
  Argument,      ///< FilterArgumentError
  Type,          ///< TypeError
  Value,         ///< ValueError
  Overflow,      ///< OverflowError; also integers beyond 64 bits, which Python would have
  ZeroDivision,  ///< ZeroDivisionError
  Index,         ///< IndexError
  Key,           ///< KeyError
  Unsupported,   ///< what jinja2 has and this interpreter has not
  Limit,         ///< a limit of Limits
};

const char* cause_name(Cause cause);

/// Thrown within the interpreter; ChatTemplate makes a TemplateError of it, with the template's name.
struct Failure : std::exception {
  Failure(Cause what, std::string text, int at = 0) : cause(what), message(std::move(text)), line(at) {}
  const char* what() const noexcept override { return message.c_str(); }
  Cause cause;
  std::string message;
  int line;  ///< of the template, from 1; 0: not known yet
};

template <class... Parts>
[[noreturn]] void fail(Cause cause, const Parts&... parts) {
  throw Failure(cause, concat(parts...));
}

/// What is left of the limits of one rendering.
class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits), steps_(limits.steps), bytes_(limits.bytes) {}
  const Limits& limits() const { return limits_; }
  void step(int64_t count = 1) {
    steps_ -= count;
    if (steps_ < 0) fail_steps();
  }
  /// What looks at each character of a text of so many bytes takes.
  void step_characters(size_t bytes) { step(static_cast<int64_t>(bytes / 4)); }
  /// Before a text or list of so many bytes is made.
  void take_bytes(int64_t count) {
    if (count > bytes_) fail_bytes();
    bytes_ -= count;
  }
  /// `count` things of `size` bytes, whose product may not fit.
  void take_bytes(int64_t count, int64_t size) {
    if (count > 0 && size > bytes_ / count) fail_bytes();
    take_bytes(count * size);
  }
  /// One level deeper while it lives.
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
