#include "colossal/text/jinja/filters.h"
#include "colossal/text/jinja/operators.h"
#include "colossal/text/jinja/print.h"

namespace colossal::text::jinja {

const Value* Interpreter::find(int name, const ScopePtr& scope) const {
  for (const Scope* at = scope.get(); at; at = at->outer.get())
    if (const Value* found = at->find_here(name)) return found;
  return nullptr;
}

Value Interpreter::look_up(const Node& node, const ScopePtr& scope) {
  int scopes = 0;
  for (const Scope* at = scope.get(); at; at = at->outer.get()) {
    if (const Value* found = at->find_here(node.name)) return *found;
    if (++scopes % 16 == 0) budget_.step();
  }
  Undefined undefined;
  undefined.name = repr_of_text(tree_.names[static_cast<size_t>(node.name)]);
  budget_.take_bytes(static_cast<int64_t>(sizeof(Undefined) + undefined.name.size()));
  return Value::of(std::make_shared<const Undefined>(std::move(undefined)));
}

Value Interpreter::evaluate(const Node& node, const ScopePtr& scope) {
  budget_.step();
  const Budget::Level level(budget_);
  switch (node.kind) {
    case NodeKind::Constant:
      return node.value;
    case NodeKind::Name:
      return look_up(node, scope);
    case NodeKind::List:
      return make(evaluate_all(node.parts, scope));
    case NodeKind::Tuple:
      return make(evaluate_all(node.parts, scope), Sequence::Tuple);
    case NodeKind::Dict:
      return make_dict_of(node, scope);
    case NodeKind::Attribute:
      return attribute(*this, evaluate(*node.parts[0], scope), node.text);
    case NodeKind::Element: {
      const Value object = evaluate(*node.parts[0], scope);
      return element(*this, object, evaluate(*node.parts[1], scope));
    }
    case NodeKind::Slice:
      return evaluate_slice(node, scope);
    case NodeKind::Call: {
      const Value callee = evaluate(*node.parts[0], scope);
      Arguments arguments = evaluate_arguments(node.call.get(), scope);
      return call(callee, arguments);
    }
    case NodeKind::Filter:
      return filter(node, scope);
    case NodeKind::Test:
      return test(node, scope);
    case NodeKind::Choice:
      return choose(node, scope);
    case NodeKind::Or: {
      Value left = evaluate(*node.parts[0], scope);
      return is_true(left) ? left : evaluate(*node.parts[1], scope);
    }
    case NodeKind::And: {
      Value left = evaluate(*node.parts[0], scope);
      return is_true(left) ? evaluate(*node.parts[1], scope) : left;
    }
    case NodeKind::Not:
      return Value::boolean(!is_true(evaluate(*node.parts[0], scope)));
    case NodeKind::Compare:
      return compare(node, scope);
    case NodeKind::Concat:
      return concatenate(node, scope);
    case NodeKind::Negative:
    case NodeKind::Positive:
      return unary(budget_, node.kind, evaluate(*node.parts[0], scope));
    default:
      break;
  }
  const Value left = evaluate(*node.parts[0], scope);
  return binary(budget_, node.kind, left, evaluate(*node.parts[1], scope));
}

std::vector<Value> Interpreter::evaluate_all(const std::vector<NodePtr>& nodes, const ScopePtr& scope) {
  std::vector<Value> values;
  values.reserve(nodes.size());
  for (const NodePtr& node : nodes) values.push_back(evaluate(*node, scope));
  return values;
}

Value Interpreter::make_dict_of(const Node& node, const ScopePtr& scope) {
  Dict dict;
  for (size_t i = 0; i + 1 < node.parts.size(); i += 2) {
    const Value key = evaluate(*node.parts[i], scope);
    step_key(budget_, key);
    dict.set(key, evaluate(*node.parts[i + 1], scope));
  }
  return make_dict(budget_, std::move(dict));
}

Value Interpreter::evaluate_slice(const Node& node, const ScopePtr& scope) {
  const Value object = evaluate(*node.parts[0], scope);
  Value borders[3];
  for (size_t i = 0; i < 3; ++i)
    if (node.parts[i + 1]) borders[i] = evaluate(*node.parts[i + 1], scope);
  return slice(budget_, object, borders[0], borders[1], borders[2]);
}

Value Interpreter::choose(const Node& node, const ScopePtr& scope) {
  if (is_true(evaluate(*node.parts[1], scope))) return evaluate(*node.parts[0], scope);
  if (node.parts[2]) return evaluate(*node.parts[2], scope);
  return make_undefined(
      concat("the inline if-expression on line ", node.line, " evaluated to false and no else section was defined."));
}

Value Interpreter::compare(const Node& node, const ScopePtr& scope) {
  Value left = evaluate(*node.parts[0], scope);
  for (size_t i = 0; i < node.operators.size(); ++i) {
    Value right = evaluate(*node.parts[i + 1], scope);
    if (!jinja::compare(budget_, node.operators[i], left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::concatenate(const Node& node, const ScopePtr& scope) {
  std::string text;
  for (const NodePtr& part : node.parts) text += str(budget_, evaluate(*part, scope));
  return make(std::move(text));
}

Arguments Interpreter::evaluate_arguments(const CallArguments* call, const ScopePtr& scope) {
  Arguments arguments;
  if (!call) return arguments;
  arguments.positional = evaluate_all(call->positional, scope);
  for (const auto& [name, node] : call->named) arguments.named.emplace_back(name, evaluate(*node, scope));
  if (call->spread) {
    const Value spread = evaluate(*call->spread, scope);
    for (Value& value : walk(budget_, spread)) arguments.positional.push_back(std::move(value));
  }
  if (call->spread_named) {
    const Value spread = evaluate(*call->spread_named, scope);
    if (!spread.dict()) fail(Cause::Type, "argument after ** must be a mapping, not ", type_name(spread));
    for (const auto& [key, value] : spread.dict()->entries()) {
      if (!key.text()) fail(Cause::Type, "keywords must be strings");
      arguments.named.emplace_back(key.text()->bytes, value);
    }
  }
  return arguments;
}

Value Interpreter::call(const Value& callee, Arguments& arguments) {
  require_defined(callee);
  if (!callee.object() || !callee.object()->is_callable())
    fail(Cause::Type, "'", type_name(callee), "' object is not callable");
  const std::shared_ptr<Object> object = callee.share_object();
  return object->call(*this, arguments);
}

Value Interpreter::filter(const Node& node, const ScopePtr& scope, const Value* block) {
  // A chain of filters after a block ends in a filter without an operand. The rendered block is its operand.
  const Budget::Level level(budget_);
  const Native found = find_filter(node.text);
  Value value;
  if (!node.parts[0])
    value = *block;
  else if (block && node.parts[0]->kind == NodeKind::Filter)
    value = filter(*node.parts[0], scope, block);
  else
    value = evaluate(*node.parts[0], scope);
  if (!found) fail(Cause::Runtime, "No filter named ", repr_of_text(node.text), " found.");
  Arguments arguments = evaluate_arguments(node.call.get(), scope);
  return found(*this, value, arguments);
}

Value Interpreter::test(const Node& node, const ScopePtr& scope) {
  const Native found = find_test(node.text);
  const Value value = evaluate(*node.parts[0], scope);
  if (!found) fail(Cause::Runtime, "No test named ", repr_of_text(node.text), " found.");
  Arguments arguments = evaluate_arguments(node.call.get(), scope);
  return found(*this, value, arguments);
}

}  // namespace colossal::text::jinja
