#include "colossal/text/jinja/interpreter.h"

#include <algorithm>

#include "colossal/text/jinja/objects.h"
#include "colossal/text/jinja/print.h"

namespace colossal::text::jinja {
namespace {

int index_of(const Tree& tree, std::string_view name) {
  const auto place = std::find(tree.names.begin(), tree.names.end(), name);
  return place == tree.names.end() ? -1 : static_cast<int>(place - tree.names.begin());
}

/// Restores the old value of a variable on destruction.
template <class T>
class Restored {
 public:
  Restored(T& variable, T value) : variable_(variable), old_(std::exchange(variable, value)) {}
  ~Restored() { variable_ = old_; }
  Restored(const Restored&) = delete;
  Restored& operator=(const Restored&) = delete;

 private:
  T& variable_;
  T old_;
};

struct Finished {
  Loop& loop;
  ~Finished() { loop.finish(); }
};

}  // namespace

const Value* Scope::find_here(int name) const {
  for (const auto& variable : variables)
    if (variable.first == name) return &variable.second;
  return nullptr;
}

void Scope::set(int name, Value value) {
  for (auto& variable : variables)
    if (variable.first == name) {
      variable.second = std::move(value);
      return;
    }
  variables.emplace_back(name, std::move(value));
}

Interpreter::Interpreter(const Tree& tree, const Limits& limits, std::optional<std::tm> now)
    : tree_(tree), budget_(limits), now_(now), top_(std::make_shared<Scope>()) {
  loop_ = index_of(tree, "loop");
  caller_ = index_of(tree, "caller");
  varargs_ = index_of(tree, "varargs");
  kwargs_ = index_of(tree, "kwargs");
  for (size_t i = 0; i < tree.names.size(); ++i)
    if (auto function = global_function(*this, tree.names[i])) top_->set(static_cast<int>(i), *function);
}

Interpreter::~Interpreter() {
  // Breaks reference cycles. The destruction does not recurse, because each object is held here until its references
  // are gone.
  for (const ScopePtr& scope : kept_scopes_) scope->variables.clear();
  for (const ScopePtr& scope : kept_scopes_) scope->outer.reset();
  for (const auto& object : kept_) object->clear();
}

void Interpreter::set_variable(std::string_view name, Value value) {
  if (const int index = index_of(tree_, name); index >= 0) top_->set(index, std::move(value));
}

Rendered Interpreter::render() {
  out_ = &rendered_.text;
  run(tree_.body, top_);
  return std::move(rendered_);
}

Value Interpreter::value() {
  const bool is_alone =
      tree_.body.size() == 1 && tree_.body[0]->kind == NodeKind::Print && tree_.body[0]->parts.size() == 1;
  if (!is_alone) return make(render().text);
  try {
    const Value found = evaluate_used(*tree_.body[0]->parts[0], top_);
    return found.is_generator() ? make(walk(budget_, found)) : found;
  } catch (Failure& failure) {
    if (failure.line == 0) failure.line = tree_.body[0]->line;
    throw;
  }
}

// Evaluates an expression of a statement, which uses the value.
Value Interpreter::evaluate_used(const Node& node, const ScopePtr& scope) {
  Value value = evaluate(node, scope);
  if (refuses_undefined_) require_defined(value);
  return value;
}

void Interpreter::write(std::string_view text) {
  const bool is_output = out_ == &rendered_.text;
  if (is_output && static_cast<int64_t>(text.size() + out_->size()) > budget_.limits().output_bytes)
    fail(Cause::Limit, "the rendered text must stay within ", budget_.limits().output_bytes,
         " bytes (Limits::output_bytes)");
  budget_.take_bytes(static_cast<int64_t>(text.size()));
  out_->append(text);
}

std::string Interpreter::captured(const std::function<void()>& write_it) {
  std::string text;
  const Restored<std::string*> out(out_, &text);
  write_it();
  return text;
}

ScopePtr Interpreter::inner(const ScopePtr& outer) {
  budget_.take_bytes(sizeof(Scope));
  auto scope = std::make_shared<Scope>();
  scope->outer = outer;
  scope->depth = outer->depth + 1;
  // A macro may be defined inside a scope that it created before and passed on through a namespace. Scopes may
  // therefore nest deeper than the calls that are running.
  if (scope->depth > budget_.limits().depth)
    fail(Cause::Limit, "scopes must be nested at most ", budget_.limits().depth, " deep (Limits::depth)");
  return scope;
}

Interpreter::Flow Interpreter::run(const std::vector<NodePtr>& body, const ScopePtr& scope) {
  for (const NodePtr& node : body) {
    const Flow flow = run(*node, scope);
    if (flow != Flow::On) return flow;
  }
  return Flow::On;
}

Interpreter::Flow Interpreter::run(const Node& node, const ScopePtr& scope) {
  budget_.step();
  const Budget::Level level(budget_);
  try {
    switch (node.kind) {
      case NodeKind::Data:
        write(node.text);
        break;
      case NodeKind::Print:
        for (const NodePtr& part : node.parts) write(str(budget_, evaluate_used(*part, scope)));
        break;
      case NodeKind::Set:
        set(node, scope);
        break;
      case NodeKind::SetBlock:
        return set_block(node, scope);
      case NodeKind::If:
        return if_(node, scope);
      case NodeKind::For: {
        const Value items = evaluate_used(*node.parts[1], scope);
        if (!node.is_marked) return for_(node, scope, items, 0);
        write(recurse_loop(node, scope, items, 0));
        break;
      }
      case NodeKind::Macro:
        scope->set(node.name, make_macro(node, scope));
        break;
      case NodeKind::CallBlock:
        call_block(node, scope);
        break;
      case NodeKind::FilterBlock:
        return filter_block(node, scope);
      case NodeKind::With:
        return with(node, scope);
      case NodeKind::Block:
        run(node.body, inner(node.is_marked ? scope : top_));
        break;
      case NodeKind::Generation:
        generation(node, scope);
        break;
      case NodeKind::Break:
        return Flow::Break;
      case NodeKind::Continue:
        return Flow::Continue;
      case NodeKind::Absent:
        fail(Cause::Type, "no loader for this environment specified: a chat template cannot use '", node.text, "'");
      default:
        fail(Cause::Unsupported, "this is not a statement");
    }
  } catch (Failure& failure) {
    if (failure.line == 0) failure.line = node.line;
    throw;
  }
  return Flow::On;
}

void Interpreter::set(const Node& node, const ScopePtr& scope) {
  require_namespaces(*node.parts[0], scope);
  assign(*node.parts[0], evaluate(*node.parts[1], scope), scope);
}

Interpreter::Flow Interpreter::set_block(const Node& node, const ScopePtr& scope) {
  const ScopePtr body = inner(scope);
  Flow flow = Flow::On;
  Value text = make(captured([&] { flow = run(node.body, body); }));
  if (flow != Flow::On) return flow;
  require_namespaces(*node.parts[0], scope);
  if (node.parts[1]) text = filter(*node.parts[1], body, &text);
  assign(*node.parts[0], text, scope);
  return Flow::On;
}

Interpreter::Flow Interpreter::filter_block(const Node& node, const ScopePtr& scope) {
  const ScopePtr body = inner(scope);
  Flow flow = Flow::On;
  const Value text = make(captured([&] { flow = run(node.body, body); }));
  if (flow == Flow::On) write(str(budget_, filter(*node.parts[0], body, &text)));
  return flow;
}

Interpreter::Flow Interpreter::if_(const Node& node, const ScopePtr& scope) {
  if (is_true(evaluate_used(*node.parts[0], scope))) return run(node.body, scope);
  for (const NodePtr& other : node.otherwise) {  // an elif has a condition, an else has none
    budget_.step();
    if (other->parts.empty() || is_true(evaluate_used(*other->parts[0], scope))) return run(other->body, scope);
  }
  return Flow::On;
}

Interpreter::Flow Interpreter::for_(const Node& node, const ScopePtr& scope, const Value& items, int depth) {
  if (!is_iterable(items)) fail(Cause::Type, "'", type_name(items), "' object is not iterable");
  Loop::Test test;
  if (node.parts[2]) {
    test = [&](const Value& item) {
      const ScopePtr own = inner(scope);
      assign(*node.parts[0], item, own);
      return is_true(evaluate(*node.parts[2], own));
    };
  }
  const auto loop = std::make_shared<Loop>(budget_, node, scope, items, std::move(test), depth);
  const Finished finished{*loop};
  bool is_done = false;  // an iteration ran to its end; jinja2 runs `else` if break or continue ended each of them
  while (const std::optional<Value> item = loop->advance()) {
    const ScopePtr own = inner(scope);
    if (loop_ >= 0) own->set(loop_, Value::of(std::shared_ptr<Object>(loop)));
    assign(*node.parts[0], *item, own);
    const Flow flow = run(node.body, own);
    if (flow == Flow::Break) break;
    is_done |= flow == Flow::On;
  }
  if (is_done || node.otherwise.empty()) return Flow::On;
  return run(node.otherwise, inner(scope));
}

std::string Interpreter::recurse_loop(const Node& node, const ScopePtr& scope, const Value& items, int depth) {
  const Budget::Level level(budget_);
  return captured([&] { for_(node, scope, items, depth); });
}

Value Interpreter::make_macro(const Node& node, const ScopePtr& scope) {
  budget_.take_bytes(sizeof(Macro));
  if (!std::exchange(scope->is_kept, true)) kept_scopes_.push_back(scope);
  return Value::of(std::shared_ptr<Object>(std::make_shared<Macro>(node, scope)));
}

std::string Interpreter::call_macro(const Node& node, const ScopePtr& scope, Arguments& arguments) {
  const Budget::Level level(budget_);
  const ScopePtr own = inner(scope);
  bind(*node.macro, own, arguments);
  return captured([&] { run(node.body, own); });
}

void Interpreter::bind(const MacroSignature& macro, const ScopePtr& scope, Arguments& arguments) {
  const size_t count = macro.parameters.size();
  auto& given = arguments.positional;
  auto& named = arguments.named;
  const auto take = [&](const std::string& name) {
    const auto place = std::find_if(named.begin(), named.end(), [&](const auto& one) { return one.first == name; });
    std::optional<Value> value;
    if (place == named.end()) return value;
    value = place->second;
    named.erase(place);
    return value;
  };
  for (size_t i = 0; i < count; ++i) {
    auto value = i < given.size() ? std::optional<Value>(given[i]) : take(macro.parameter_names[i]);
    if (value) scope->set(macro.parameters[i], *value);
  }
  if (macro.uses_caller) {
    const auto caller = take("caller");
    scope->set(caller_, caller && !caller->is_none() ? *caller : make_undefined("No caller defined"));
  }
  if (macro.uses_kwargs) {
    Dict rest;
    for (const auto& [name, value] : named) rest.set(make(name), value);
    scope->set(kwargs_, make_dict(budget_, std::move(rest)));
  } else if (!named.empty()) {
    fail(Cause::Type, "macro ", repr_of_text(macro.name), " takes no keyword argument ", repr_of_text(named[0].first));
  }
  if (macro.uses_varargs) {
    std::vector<Value> rest(given.begin() + static_cast<std::ptrdiff_t>(std::min(count, given.size())), given.end());
    scope->set(varargs_, make(std::move(rest), Sequence::Tuple));
  } else if (given.size() > count) {
    fail(Cause::Type, "macro ", repr_of_text(macro.name), " takes not more than ", count, " argument(s)");
  }
  for (size_t i = 0; i < count; ++i) {
    if (scope->find_here(macro.parameters[i])) continue;
    const size_t first_default = count - macro.defaults.size();
    Value value =
        i < first_default
            ? make_undefined(concat("parameter ", repr_of_text(macro.parameter_names[i]), " was not provided"))
            : evaluate(*macro.defaults[i - first_default], scope);
    scope->set(macro.parameters[i], std::move(value));
  }
}

void Interpreter::call_block(const Node& node, const ScopePtr& scope) {
  const Node& call_node = *node.parts[0];
  const Value callee = evaluate(*call_node.parts[0], scope);
  Arguments arguments = evaluate_arguments(call_node.call.get(), scope);
  arguments.named.emplace_back("caller", make_macro(node, scope));
  write(str(budget_, call(callee, arguments)));
}

Interpreter::Flow Interpreter::with(const Node& node, const ScopePtr& scope) {
  const ScopePtr own = inner(scope);
  for (size_t i = 0; i + 1 < node.parts.size(); i += 2)
    assign(*node.parts[i], evaluate(*node.parts[i + 1], scope), own);
  return run(node.body, own);
}

void Interpreter::generation(const Node& node, const ScopePtr& scope) {
  const ScopePtr own = inner(scope);
  const std::string text = captured([&] { run(node.body, own); });
  // As in transformers, offsets count from the end of the template's own output so far, within macros too.
  budget_.take_bytes(sizeof(RenderedSpan));
  rendered_.generated.push_back({rendered_.text.size(), rendered_.text.size() + text.size()});
  write(text);
}

void Interpreter::assign(const Node& target, const Value& value, const ScopePtr& scope) {
  if (target.kind == NodeKind::Name) return scope->set(target.name, value);
  if (target.kind == NodeKind::NamespaceTarget) {
    const Value* found = find(target.name, scope);
    static_cast<Namespace*>(found->object())->set(budget_, make(target.text), value);
    return;
  }
  if (!is_iterable(value)) fail(Cause::Type, "cannot unpack non-iterable ", type_name(value), " object");
  const std::vector<Value> values = walk(budget_, value);
  const size_t wanted = target.parts.size();
  if (values.size() < wanted)
    fail(Cause::Value, "not enough values to unpack (expected ", wanted, ", got ", values.size(), ")");
  if (values.size() > wanted) fail(Cause::Value, "too many values to unpack (expected ", wanted, ")");
  for (size_t i = 0; i < wanted; ++i) assign(*target.parts[i], values[i], scope);
}

void Interpreter::require_namespaces(const Node& target, const ScopePtr& scope) {
  if (target.kind == NodeKind::NamespaceTarget) {
    const Value* found = find(target.name, scope);
    if (!found || !dynamic_cast<Namespace*>(found->object()))
      fail(Cause::Runtime, "cannot assign attribute on non-namespace object");
  }
  if (target.kind == NodeKind::Tuple)
    for (const NodePtr& part : target.parts) require_namespaces(*part, scope);
}

}  // namespace colossal::text::jinja
