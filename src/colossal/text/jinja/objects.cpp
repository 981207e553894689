#include "colossal/text/jinja/objects.h"

#include <locale.h>

#include "colossal/text/jinja/attributes.h"
#include "colossal/text/jinja/print.h"

namespace colossal::text::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;             // as in jinja2's sandbox
constexpr size_t kMaxTimeBytes = size_t{1} << 16;  // maximum size of a formatted time in bytes

/// Implements cycler(): returns its values in turn.
class Cycler : public Object {
 public:
  explicit Cycler(std::vector<Value> values) : values_(std::move(values)) {
    for (const Value& value : values_) depth_ = std::max(depth_, depth_of(value) + 1);
    require_shallow(depth_);
  }
  std::string type_name() const override { return "Cycler"; }
  std::string full_type_name() const override { return "jinja2.utils.Cycler"; }
  int depth() const override { return depth_; }
  std::optional<Value> attribute(Interpreter& interpreter, std::string_view name) override;
  Value current() const { return values_[at_]; }
  Value next() {
    const Value value = current();
    at_ = (at_ + 1) % values_.size();
    return value;
  }
  void reset() { at_ = 0; }

 private:
  std::vector<Value> values_;
  size_t at_ = 0;
  int depth_ = 1;
};

Value cycler_next(Interpreter&, const Value& self, Arguments&) { return static_cast<Cycler*>(self.object())->next(); }

Value cycler_reset(Interpreter&, const Value& self, Arguments&) {
  static_cast<Cycler*>(self.object())->reset();
  return Value::none();
}

std::optional<Value> Cycler::attribute(Interpreter& interpreter, std::string_view name) {
  if (name == "current") return current();
  if (name == "next") return make_native(interpreter, name, cycler_next, Value::of(shared_from_this()));
  if (name == "reset") return make_native(interpreter, name, cycler_reset, Value::of(shared_from_this()));
  return std::nullopt;
}

/// Implements joiner(): returns an empty text the first time and its separator afterwards.
class Joiner : public Object {
 public:
  explicit Joiner(Value between) : between_(std::move(between)), depth_(depth_of(between_) + 1) {
    require_shallow(depth_);
  }
  std::string type_name() const override { return "Joiner"; }
  std::string full_type_name() const override { return "jinja2.utils.Joiner"; }
  bool is_callable() const override { return true; }
  int depth() const override { return depth_; }
  Value call(Interpreter& interpreter, Arguments&) override {
    return std::exchange(is_used_, true) ? between_ : interpreter.make("");
  }

 private:
  Value between_;
  int depth_;
  bool is_used_ = false;
};

Value range(Interpreter& interpreter, const Value&, Arguments& arguments) {
  const Bound bound("range", arguments, {"start", "stop", "step"}, 1);
  const bool has_start = bound.has(1);
  const int64_t start = has_start ? bound.integer(0, 0) : 0, stop = bound.integer(has_start ? 1 : 0, 0);
  const int64_t step = bound.integer(2, 1);
  if (step == 0) fail(Cause::Value, "range() arg 3 must not be zero");
  const bool is_empty = step > 0 ? start >= stop : start <= stop;
  const uint64_t distance = step > 0 ? static_cast<uint64_t>(stop) - static_cast<uint64_t>(start)
                                     : static_cast<uint64_t>(start) - static_cast<uint64_t>(stop);
  const uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : uint64_t{0} - static_cast<uint64_t>(step);
  const uint64_t count = is_empty ? 0 : 1 + (distance - 1) / stride;
  if (count > kMaxRange)
    fail(Cause::Overflow, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (", kMaxRange, ").");
  interpreter.budget().step(static_cast<int64_t>(count / 16));
  std::vector<Value> values;
  for (uint64_t i = 0; i < count; ++i)
    values.push_back(
        Value::integer(static_cast<int64_t>(static_cast<uint64_t>(start) + i * static_cast<uint64_t>(step))));
  Value made = interpreter.make(std::move(values), Sequence::Range);
  made.items()->start = start;
  made.items()->stop = stop;
  made.items()->step = step;
  return made;
}

/// Returns the keys and values of the arguments as dict() takes them.
std::vector<std::pair<Value, Value>> pairs_of(Interpreter& interpreter, const Arguments& arguments) {
  std::vector<std::pair<Value, Value>> pairs;
  if (arguments.positional.size() > 1)
    fail(Cause::Type, "dict expected at most 1 argument, got ", arguments.positional.size());
  if (!arguments.positional.empty()) require_defined(arguments.positional[0]);
  if (!arguments.positional.empty() && arguments.positional[0].dict()) {
    pairs = arguments.positional[0].dict()->entries();
  } else if (!arguments.positional.empty()) {
    for (const Value& item : walk(interpreter.budget(), arguments.positional[0])) {
      interpreter.budget().step();
      const std::vector<Value> both = walk(interpreter.budget(), item);
      if (both.size() != 2)
        fail(Cause::Value, "dictionary update sequence element #", pairs.size(), " has length ", both.size(),
             "; 2 is required");
      pairs.emplace_back(both[0], both[1]);
    }
  }
  for (const auto& [name, value] : arguments.named) pairs.emplace_back(interpreter.make(name), value);
  return pairs;
}

Value dict(Interpreter& interpreter, const Value&, Arguments& arguments) {
  Dict made;
  for (auto& [key, value] : pairs_of(interpreter, arguments)) {
    step_key(interpreter.budget(), key);
    made.set(key, std::move(value));
  }
  return make_dict(interpreter.budget(), std::move(made));
}

Value namespace_(Interpreter& interpreter, const Value&, Arguments& arguments) {
  interpreter.budget().take_bytes(sizeof(Namespace));
  auto made = std::make_shared<Namespace>();
  interpreter.keep(made);
  for (auto& [key, value] : pairs_of(interpreter, arguments)) made->set(interpreter.budget(), key, std::move(value));
  return Value::of(std::shared_ptr<Object>(made));
}

Value cycler(Interpreter& interpreter, const Value&, Arguments& arguments) {
  if (arguments.positional.empty()) fail(Cause::Runtime, "at least one item has to be provided");
  interpreter.budget().take_bytes(static_cast<int64_t>(sizeof(Cycler) + arguments.positional.size() * sizeof(Value)));
  return Value::of(std::shared_ptr<Object>(std::make_shared<Cycler>(arguments.positional)));
}

Value joiner(Interpreter& interpreter, const Value&, Arguments& arguments) {
  const Bound bound("joiner", arguments, {"sep"});
  const Value between = bound.has(0) ? bound.at(0) : interpreter.make(", ");
  return Value::of(std::shared_ptr<Object>(std::make_shared<Joiner>(between)));
}

Value raise_exception(Interpreter& interpreter, const Value&, Arguments& arguments) {
  const Bound bound("raise_exception", arguments, {"message"}, 1);
  fail(Cause::Refused, str(interpreter.budget(), bound.at(0)));
}

Value strftime_now(Interpreter& interpreter, const Value&, Arguments& arguments) {
  const Bound bound("strftime_now", arguments, {"format"}, 1);
  const std::string& format = bound.text(0);
  if (format.empty()) return interpreter.make("");
  static const locale_t plain = newlocale(LC_ALL_MASK, "C", nullptr);  // English names, whatever locale the process has
                                                                       // set
  std::string text;
  for (size_t size = 256; size <= kMaxTimeBytes; size *= 4) {
    text.assign(size, '\0');
    const size_t written = strftime_l(text.data(), size, format.c_str(), &*interpreter.now(), plain);
    if (written > 0) return interpreter.make(text.substr(0, written));
  }
  if (format.size() > 64) fail(Cause::Limit, "strftime_now must write at most ", kMaxTimeBytes, " bytes");
  return interpreter.make("");
}

Loop& loop_of(const Value& self) { return *static_cast<Loop*>(self.object()); }

Value call_cycle(Interpreter&, const Value& self, Arguments& arguments) { return loop_of(self).cycle(arguments); }

Value call_changed(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  return Value::boolean(loop_of(self).changed(interpreter, arguments));
}

}  // namespace

std::string Namespace::repr(Budget& budget) const {
  std::string out = "<Namespace {";
  for (const auto& [key, value] : attributes_.entries()) {
    if (out.back() != '{') out += ", ";
    out += jinja::repr(budget, key) + ": " + jinja::repr(budget, value);
  }
  return out + "}>";
}

std::optional<Value> Namespace::attribute(Interpreter&, std::string_view name) {
  const Value* found = attributes_.find(name);
  return found ? std::optional<Value>(*found) : std::nullopt;
}

void Namespace::set(Budget& budget, const Value& name, Value value) {
  if (name.text() && name.text()->bytes.starts_with('_'))
    fail(Cause::Security, "Chat templates cannot store underscore-prefixed attributes on a namespace, but got ",
         repr_of_text(name.text()->bytes), ". Please rename the attribute.");
  budget.take_bytes(2 * sizeof(Value));
  attributes_.set(name, std::move(value));
}

std::string Macro::repr(Budget&) const {
  return node_.macro->name.empty() ? "<Macro anonymous>" : "<Macro " + repr_of_text(node_.macro->name) + ">";
}

std::optional<Value> Macro::attribute(Interpreter& interpreter, std::string_view name) {
  const MacroSignature& signature = *node_.macro;
  if (name == "name") return signature.name.empty() ? Value::none() : interpreter.make(signature.name);
  if (name == "catch_kwargs") return Value::boolean(signature.uses_kwargs);
  if (name == "catch_varargs") return Value::boolean(signature.uses_varargs);
  if (name == "caller") return Value::boolean(signature.uses_caller);
  if (name != "arguments") return std::nullopt;
  std::vector<Value> names;
  for (const std::string& parameter : signature.parameter_names) names.push_back(interpreter.make(parameter));
  return interpreter.make(std::move(names), Sequence::Tuple);
}

Value Macro::call(Interpreter& interpreter, Arguments& arguments) {
  const ScopePtr scope = scope_;  // a namespace may drop its reference to the macro during the call
  return interpreter.make(interpreter.call_macro(node_, scope, arguments));
}

std::optional<Value> global_function(Interpreter& interpreter, std::string_view name) {
  Native function = nullptr;
  if (name == "range") function = range;
  if (name == "dict") function = dict;
  if (name == "namespace") function = namespace_;
  if (name == "cycler") function = cycler;
  if (name == "joiner") function = joiner;
  if (name == "raise_exception") function = raise_exception;
  if (name == "strftime_now" && interpreter.now()) function = strftime_now;
  if (!function) return std::nullopt;
  return make_native(interpreter, name, function);
}

Loop::Loop(Budget& budget, const Node& node, ScopePtr scope, Value items, Test test, int depth)
    : budget_(budget),
      node_(node),
      scope_(std::move(scope)),
      source_(std::move(items)),
      test_(std::move(test)),
      depth_(depth) {
  budget.take_bytes(sizeof(Loop));
  if (has_length(source_) && !test_) length_ = length_of(source_);
  if (!source_.items()) values_ = walk(budget, source_);
}

std::optional<Value> Loop::fetch() {
  while (true) {
    const std::vector<Value>& values = source_.items() ? source_.items()->values : values_;
    size_t& at = source_.is_generator() ? source_.items()->walked : at_;
    if (at >= values.size()) {
      if (source_.is_generator()) {
        if (const auto failure = std::move(source_.items()->failure)) throw *failure;
      }
      return std::nullopt;
    }
    budget_.step();
    Value item = values[at++];
    if (!test_ || test_(item)) return item;
  }
}

const std::optional<Value>& Loop::peek() {
  if (!after_ && !is_over_) after_ = fetch();
  return after_;
}

std::optional<Value> Loop::advance() {
  std::optional<Value> item = after_ ? std::exchange(after_, std::nullopt) : fetch();
  if (!item) return item;
  ++index_;
  before_ = std::exchange(current_, *item);
  return item;
}

void Loop::finish() {
  is_over_ = true;
  scope_.reset();
  source_ = current_ = before_ = Value::none();
  values_.clear();
  test_ = nullptr;
  after_.reset();
  last_changed_.reset();
}

int64_t Loop::length() {
  if (length_ >= 0) return length_;
  std::vector<Value> rest;
  while (!is_over_) {
    std::optional<Value> item = fetch();
    if (!item) break;
    budget_.take_bytes(sizeof(Value));
    rest.push_back(std::move(*item));
  }
  length_ = static_cast<int64_t>(rest.size()) + index_ + 1 + after_.has_value();
  source_ = Value::none();
  values_ = std::move(rest);
  at_ = 0;
  test_ = nullptr;  // the remaining values have passed the test
  return length_;
}

std::string Loop::repr(Budget&) const { return concat("<LoopContext ", index_ + 1, "/", length_, ">"); }

std::optional<Value> Loop::attribute(Interpreter& interpreter, std::string_view name) {
  if (name == "index") return Value::integer(index_ + 1);
  if (name == "index0") return Value::integer(index_);
  if (name == "first") return Value::boolean(index_ == 0);
  if (name == "last") return Value::boolean(!peek());
  if (name == "length") return Value::integer(length());
  if (name == "revindex") return Value::integer(length() - index_);
  if (name == "revindex0") return Value::integer(length() - index_ - 1);
  if (name == "depth") return Value::integer(depth_ + 1);
  if (name == "depth0") return Value::integer(depth_);
  if (name == "previtem") return index_ == 0 ? make_undefined("there is no previous item") : before_;
  if (name == "nextitem") return peek() ? *peek() : make_undefined("there is no next item");
  if (name == "cycle") return make_native(interpreter, name, call_cycle, Value::of(shared_from_this()));
  if (name == "changed") return make_native(interpreter, name, call_changed, Value::of(shared_from_this()));
  return std::nullopt;
}

Value Loop::call(Interpreter& interpreter, Arguments& arguments) {
  const Bound bound("loop", arguments, {"iterable"}, 1);
  if (!node_.is_marked) fail(Cause::Type, "The loop must have the 'recursive' marker to be called recursively.");
  if (is_over_) fail(Cause::Unsupported, "a loop must be called while it runs");
  const ScopePtr scope = scope_;
  return interpreter.make(interpreter.recurse_loop(node_, scope, bound.at(0), depth_ + 1));
}

Value Loop::cycle(const Arguments& arguments) const {
  if (arguments.positional.empty()) fail(Cause::Type, "no items for cycling given");
  return arguments.positional[static_cast<size_t>(std::max<int64_t>(index_, 0)) % arguments.positional.size()];
}

bool Loop::changed(Interpreter& interpreter, const Arguments& arguments) {
  const Value now = interpreter.make(arguments.positional, Sequence::Tuple);
  if (last_changed_ && is_equal(interpreter.budget(), *last_changed_, now)) return false;
  if (!is_over_) last_changed_ = now;
  return true;
}

}  // namespace colossal::text::jinja
