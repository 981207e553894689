#include "colossal/text/jinja/loop.h"

#include "colossal/text/jinja/attributes.h"

namespace colossal::text::jinja {
namespace {

Loop& loop_of(const Value& self) { return *static_cast<Loop*>(self.object()); }

Value call_cycle(Interpreter&, const Value& self, Arguments& arguments) { return loop_of(self).cycle(arguments); }

Value call_changed(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  return Value::boolean(loop_of(self).changed(interpreter, arguments));
}

}  // namespace

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
