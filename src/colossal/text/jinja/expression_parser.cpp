#include "colossal/text/jinja/expression_parser.h"

#include <algorithm>

namespace colossal::text::jinja {

NodePtr ExpressionParser::expression(bool with_choice) {
  const Nested nested(*this);
  if (!with_choice) return or_();
  int line = now().line;
  NodePtr node = or_();
  while (skip_name("if")) {
    NodePtr test = or_(), other;
    if (skip_name("else")) other = expression();
    node = make(NodeKind::Choice, line, std::move(node), std::move(test), std::move(other));
    line = now().line;
  }
  return node;
}

NodePtr ExpressionParser::or_() {
  NodePtr left = and_();
  while (skip_name("or")) left = make_binary(NodeKind::Or, std::move(left), and_());
  return left;
}

NodePtr ExpressionParser::and_() {
  NodePtr left = not_();
  while (skip_name("and")) left = make_binary(NodeKind::And, std::move(left), not_());
  return left;
}

NodePtr ExpressionParser::not_() {
  if (!now().is_name("not")) return compare();
  const Nested nested(*this);
  const int line = take().line;
  return make(NodeKind::Not, line, not_());
}

bool ExpressionParser::skip_comparison(Comparison& comparison) {
  static const std::map<std::string_view, Comparison> signs{
      {"==", Comparison::Equal},     {"!=", Comparison::NotEqual}, {"<", Comparison::Less},
      {"<=", Comparison::LessEqual}, {">", Comparison::Greater},   {">=", Comparison::GreaterEqual}};
  if (now().kind == TokenKind::Operator) {
    const auto sign = signs.find(now().text);
    if (sign == signs.end()) return false;
    comparison = sign->second;
    ++at_;
    return true;
  }
  if (skip_name("in")) return comparison = Comparison::In, true;
  if (!now().is_name("not") || !then().is_name("in")) return false;
  at_ += 2;
  return comparison = Comparison::NotIn, true;
}

NodePtr ExpressionParser::compare() {
  NodePtr left = sum();
  Comparison comparison;
  if (!skip_comparison(comparison)) return left;
  const int line = left->line;
  NodePtr node = make(NodeKind::Compare, line, std::move(left));
  do {
    node->operators.push_back(comparison);
    add(*node, sum());
  } while (skip_comparison(comparison));
  return node;
}

NodePtr ExpressionParser::sum() {
  NodePtr left = concatenation();
  while (now().is_operator("+") || now().is_operator("-")) {
    const NodeKind kind = take().text == "+" ? NodeKind::Add : NodeKind::Subtract;
    left = make_binary(kind, std::move(left), concatenation());
  }
  return left;
}

NodePtr ExpressionParser::concatenation() {
  NodePtr first = product();
  if (!now().is_operator("~")) return first;
  const int line = first->line;
  NodePtr node = make(NodeKind::Concat, line, std::move(first));
  while (skip_operator("~")) add(*node, product());
  return node;
}

NodePtr ExpressionParser::product() {
  static const std::map<std::string_view, NodeKind> signs{
      {"*", NodeKind::Multiply}, {"/", NodeKind::Divide}, {"//", NodeKind::FloorDivide}, {"%", NodeKind::Modulo}};
  NodePtr left = power();
  while (now().kind == TokenKind::Operator) {
    const auto sign = signs.find(now().text);
    if (sign == signs.end()) break;
    ++at_;
    left = make_binary(sign->second, std::move(left), power());
  }
  return left;
}

NodePtr ExpressionParser::power() {
  NodePtr left = unary();
  while (skip_operator("**")) left = make_binary(NodeKind::Power, std::move(left), unary());
  return left;
}

NodePtr ExpressionParser::unary(bool with_filter) {
  const Nested nested(*this);
  const int line = now().line;
  NodePtr node;
  if (skip_operator("-"))
    node = make(NodeKind::Negative, line, unary(false));
  else if (skip_operator("+"))
    node = make(NodeKind::Positive, line, unary(false));
  else
    node = primary();
  node = postfix(std::move(node));
  return with_filter ? filter_expression(std::move(node)) : std::move(node);
}

NodePtr ExpressionParser::primary() {
  const int line = now().line;
  if (now().kind == TokenKind::Name) {
    const std::string name = take().text;
    if (name == "true" || name == "True") return make_constant(Value::boolean(true), line);
    if (name == "false" || name == "False") return make_constant(Value::boolean(false), line);
    if (name == "none" || name == "None") return make_constant(Value::none(), line);
    return make_name(name, line);
  }
  if (now().kind == TokenKind::Text) {
    std::string text = take().text;
    while (now().kind == TokenKind::Text) text += take().text;
    Budget unbounded{Limits{}};  // needs no bound: the text is not longer than the template
    return make_constant(make_text(unbounded, std::move(text)), line);
  }
  if (now().kind == TokenKind::Integer) return make_constant(Value::integer(take().integer), line);
  if (now().kind == TokenKind::Real) return make_constant(Value::real(take().real), line);
  if (skip_operator("(")) {
    NodePtr node = tuple(true, true);
    expect_operator(")");
    return node;
  }
  if (skip_operator("[")) return list(line);
  if (skip_operator("{")) return dict(line);
  refuse("unexpected " + repr_of_text(describe(now())));
}

bool ExpressionParser::is_tuple_end() const {
  return now().kind == TokenKind::PrintEnd || now().kind == TokenKind::BlockEnd || now().kind == TokenKind::End ||
         now().is_operator(")");
}

NodePtr ExpressionParser::tuple(bool with_choice, bool in_brackets) {
  const int line = now().line;
  Nodes parts;
  bool is_tuple = false;
  while (true) {
    if (!parts.empty()) expect_operator(",");
    if (is_tuple_end()) break;
    parts.push_back(expression(with_choice));
    if (!now().is_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !parts.empty()) return std::move(parts[0]);
  if (!is_tuple && !in_brackets) refuse("Expected an expression, got " + repr_of_text(describe(now())));
  auto node = std::make_unique<Node>(NodeKind::Tuple, line);
  for (NodePtr& part : parts) add(*node, std::move(part));
  return node;
}

NodePtr ExpressionParser::list(int line) {
  auto node = std::make_unique<Node>(NodeKind::List, line);
  while (!now().is_operator("]")) {
    if (!node->parts.empty()) expect_operator(",");
    if (now().is_operator("]")) break;
    add(*node, expression());
  }
  expect_operator("]");
  return node;
}

NodePtr ExpressionParser::dict(int line) {
  auto node = std::make_unique<Node>(NodeKind::Dict, line);
  while (!now().is_operator("}")) {
    if (!node->parts.empty()) expect_operator(",");
    if (now().is_operator("}")) break;
    add(*node, expression());
    expect_operator(":");
    add(*node, expression());
  }
  expect_operator("}");
  return node;
}

NodePtr ExpressionParser::postfix(NodePtr node) {
  while (true) {
    const int line = now().line;
    if (skip_operator("."))
      node = attribute(std::move(node), line);
    else if (skip_operator("["))
      node = element(std::move(node), line);
    else if (now().is_operator("("))
      node = call(std::move(node));
    else
      return node;
  }
}

NodePtr ExpressionParser::attribute(NodePtr node, int line) {
  if (now().kind == TokenKind::Integer)
    return make(NodeKind::Element, line, std::move(node), make_constant(Value::integer(take().integer), line));
  if (now().kind != TokenKind::Name) refuse("expected name or number");
  NodePtr found = make(NodeKind::Attribute, line, std::move(node));
  found->text = take().text;
  return found;
}

NodePtr ExpressionParser::element(NodePtr node, int line) {
  if (now().is_operator("]")) {
    ++at_;
    return make(NodeKind::Element, line, std::move(node), std::make_unique<Node>(NodeKind::Tuple, line));
  }
  NodePtr first;
  if (!now().is_operator(":")) first = expression();
  if (now().is_operator(":")) return slice(std::move(node), std::move(first), line);
  if (now().is_operator(",")) {
    NodePtr index = make(NodeKind::Tuple, line, std::move(first));
    while (skip_operator(",")) add(*index, expression());
    first = std::move(index);
  }
  expect_operator("]");
  return make(NodeKind::Element, line, std::move(node), std::move(first));
}

NodePtr ExpressionParser::slice(NodePtr node, NodePtr begin, int line) {
  expect_operator(":");
  NodePtr end, step;
  if (!now().is_operator(":") && !now().is_operator("]")) end = expression();
  if (skip_operator(":") && !now().is_operator("]")) step = expression();
  expect_operator("]");
  return make(NodeKind::Slice, line, std::move(node), std::move(begin), std::move(end), std::move(step));
}

NodePtr ExpressionParser::filter_expression(NodePtr node) {
  while (true) {
    if (now().is_operator("|"))
      node = filters(std::move(node));
    else if (now().is_name("is"))
      node = test(std::move(node));
    else if (now().is_operator("("))
      node = call(std::move(node));
    else
      return node;
  }
}

NodePtr ExpressionParser::call(NodePtr node) {
  const int line = now().line;
  NodePtr made = make(NodeKind::Call, line, std::move(node));
  call_arguments(*made);
  return made;
}

void ExpressionParser::call_arguments(Node& node) {
  node.call = std::make_unique<CallArguments>();
  CallArguments& call = *node.call;
  const int line = now().line;
  expect_operator("(");
  const auto ensure = [&](bool ok) {
    if (!ok) refuse("invalid syntax for function call expression", line);
  };
  for (bool is_first = true; !now().is_operator(")"); is_first = false) {
    if (!is_first) expect_operator(",");
    if (now().is_operator(")")) break;
    if (skip_operator("*")) {
      ensure(!call.spread && !call.spread_named);
      deepen(node, call.spread = expression());
    } else if (skip_operator("**")) {
      ensure(!call.spread_named);
      deepen(node, call.spread_named = expression());
    } else if (now().kind == TokenKind::Name && then().is_operator("=")) {
      ensure(!call.spread_named);
      const std::string name = take().text;
      for (const auto& other : call.named)
        if (other.first == name) refuse("keyword argument repeated: " + name, line);
      take();
      call.named.emplace_back(name, expression());
      deepen(node, call.named.back().second);
    } else {
      ensure(!call.spread && !call.spread_named && call.named.empty());
      call.positional.push_back(expression());
      deepen(node, call.positional.back());
    }
  }
  expect_operator(")");
}

std::string ExpressionParser::dotted_name() {
  std::string name = expect(TokenKind::Name, "name").text;
  while (skip_operator(".")) name += "." + expect(TokenKind::Name, "name").text;
  return name;
}

NodePtr ExpressionParser::filters(NodePtr node, bool starts_inline) {
  while (starts_inline || skip_operator("|")) {
    starts_inline = false;
    const int line = now().line;
    NodePtr filter = make(NodeKind::Filter, line, std::move(node));
    filter->text = dotted_name();
    if (now().is_operator("(")) call_arguments(*filter);
    node = std::move(filter);
  }
  return node;
}

NodePtr ExpressionParser::test(NodePtr node) {
  const int line = take().line;
  const bool is_negated = skip_name("not");
  NodePtr made = make(NodeKind::Test, line, std::move(node));
  made->text = dotted_name();
  const Token& next = now();
  const bool has_argument =
      (next.kind == TokenKind::Name && !next.is_name("else") && !next.is_name("or") && !next.is_name("and")) ||
      next.kind == TokenKind::Text || next.kind == TokenKind::Integer || next.kind == TokenKind::Real ||
      next.is_operator("[") || next.is_operator("{");
  if (next.is_operator("(")) {
    call_arguments(*made);
  } else if (has_argument) {
    if (next.is_name("is")) refuse("You cannot chain multiple tests with is");
    made->call = std::make_unique<CallArguments>();
    made->call->positional.push_back(postfix(primary()));
    deepen(*made, made->call->positional.back());
  }
  return is_negated ? make(NodeKind::Not, line, std::move(made)) : std::move(made);
}

}  // namespace colossal::text::jinja
