// The variable `loop` of a for statement, and the iteration over its items.
#pragma once
#include "colossal/text/jinja/interpreter.h"

namespace colossal::text::jinja {

/// The state of a running for statement.
class Loop : public Object {
 public:
  /// Returns true if the loop visits the item.
  using Test = std::function<bool(const Value&)>;

  /// `budget` and `node` must outlive the loop. An empty `test` = all items. `depth` is the number of loops of the same
  /// statement around it (loop.depth0).
  Loop(Budget& budget, const Node& node, ScopePtr scope, Value items, Test test, int depth);
  /// Returns the next item that passes the test; no value at the end.
  std::optional<Value> advance();
  /// Releases all values at the end of the statement.
  void finish();

  std::string type_name() const override { return "LoopContext"; }
  std::string full_type_name() const override { return "jinja2.runtime.LoopContext"; }
  std::string repr(Budget&) const override;
  std::optional<Value> attribute(Interpreter& interpreter, std::string_view name) override;
  bool is_callable() const override { return true; }
  /// Renders a recursive loop over other items.
  Value call(Interpreter& interpreter, Arguments& arguments) override;
  Value cycle(const Arguments& arguments) const;
  bool changed(Interpreter& interpreter, const Arguments& arguments);

 private:
  std::optional<Value> fetch();
  const std::optional<Value>& peek();
  int64_t length();

  Budget& budget_;
  const Node& node_;
  ScopePtr scope_;
  Value source_;
  std::vector<Value> values_;  ///< items if the source is not a list
  size_t at_ = 0;
  Test test_;
  int depth_;
  int64_t index_ = -1;  ///< index of the current item, from 0
  int64_t length_ = -1;
  bool is_over_ = false;
  std::optional<Value> after_;
  Value current_, before_;
  std::optional<Value> last_changed_;
};

}  // namespace colossal::text::jinja
