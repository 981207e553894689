// A parser of jinja2's expressions, with one function per rule of the grammar.
#pragma once
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "colossal/text/jinja/lexer.h"
#include "colossal/text/jinja/print.h"
#include "colossal/text/jinja/tree.h"

namespace colossal::text::jinja {

/// Parses tokens to nodes; each node records the depth of its subtree. Members that the parser of statements needs are
/// protected.
class ExpressionParser {
 protected:
  using Nodes = std::vector<NodePtr>;
  using Ends = std::vector<std::string_view>;

  ExpressionParser(std::vector<Token> tokens, const Limits& limits) : tokens_(std::move(tokens)), limits_(limits) {}

  // --- tokens

  const Token& now() const { return tokens_[at_]; }
  const Token& then() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() { return at_ + 1 < tokens_.size() ? std::move(tokens_[at_++]) : tokens_[at_]; }
  bool skip_name(std::string_view name) { return now().is_name(name) && (++at_, true); }
  bool skip_operator(std::string_view sign) { return now().is_operator(sign) && (++at_, true); }

  [[noreturn]] void refuse(const std::string& message, int line = 0) const {
    throw Failure(Cause::Syntax, message, line ? line : now().line);
  }

  [[noreturn]] void refuse_token(const std::string& expected) const {
    if (now().kind == TokenKind::End) refuse(concat("unexpected end of template, expected '", expected, "'."));
    refuse(concat("expected token '", expected, "', got ", repr_of_text(describe(now()))));
  }

  Token expect(TokenKind kind, const char* expected) {
    if (now().kind != kind) refuse_token(expected);
    return take();
  }

  void expect_operator(const char* sign) {
    if (!skip_operator(sign)) refuse_token(sign);
  }

  void expect_name(const char* name) {
    if (!skip_name(name)) refuse_token(name);
  }

  /// Returns true if the current token is a name that ends the current body.
  bool is_end(const Ends& ends) const {
    return now().kind == TokenKind::Name && std::find(ends.begin(), ends.end(), now().text) != ends.end();
  }

  // --- nodes

  /// Guards a rule that calls itself, because the template decides how deep the recursion goes.
  class Nested {
   public:
    explicit Nested(ExpressionParser& parser) : parser_(parser) {
      if (parser.nesting_ >= parser.limits_.nesting) parser.refuse_nesting(parser.now().line);
      ++parser_.nesting_;
    }
    ~Nested() { --parser_.nesting_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    ExpressionParser& parser_;
  };

  [[noreturn]] void refuse_nesting(int line) const {
    throw Failure(Cause::Limit,
                  concat("expressions and blocks must be nested at most ", limits_.nesting, " deep (Limits::nesting)"),
                  line);
  }

  void deepen(Node& node, const NodePtr& part) const {
    if (!part) return;
    node.depth = std::max(node.depth, part->depth + 1);
    if (node.depth > limits_.nesting) refuse_nesting(node.line);
  }

  void add(Node& node, NodePtr part) const {
    deepen(node, part);
    node.parts.push_back(std::move(part));
  }

  template <class... Parts>
  NodePtr make(NodeKind kind, int line, Parts... parts) const {
    auto node = std::make_unique<Node>(kind, line);
    (add(*node, std::move(parts)), ...);
    return node;
  }

  NodePtr make_binary(NodeKind kind, NodePtr left, NodePtr right) const {
    const int line = left->line;
    return make(kind, line, std::move(left), std::move(right));
  }

  NodePtr make_text_node(NodeKind kind, int line, std::string text) const {
    auto node = std::make_unique<Node>(kind, line);
    node->text = std::move(text);
    return node;
  }

  NodePtr make_constant(Value value, int line) const {
    auto node = std::make_unique<Node>(NodeKind::Constant, line);
    node->value = std::move(value);
    return node;
  }

  int index_of(const std::string& name) {
    const auto [place, is_new] = indices_.emplace(name, static_cast<int>(tree_.names.size()));
    if (is_new) tree_.names.push_back(name);
    return place->second;
  }

  NodePtr make_name(const std::string& name, int line) {
    auto node = std::make_unique<Node>(NodeKind::Name, line);
    node->name = index_of(name);
    for (MacroSignature* macro : macros_) {
      macro->uses_caller |= name == "caller";
      macro->uses_varargs |= name == "varargs";
      macro->uses_kwargs |= name == "kwargs";
    }
    return node;
  }

  // --- expressions

  NodePtr expression(bool with_choice = true);
  NodePtr or_();
  NodePtr and_();
  NodePtr not_();
  bool skip_comparison(Comparison& comparison);
  NodePtr compare();
  NodePtr sum();
  NodePtr concatenation();
  NodePtr product();
  NodePtr power();
  NodePtr unary(bool with_filter = true);
  NodePtr primary();
  bool is_tuple_end() const;
  NodePtr tuple(bool with_choice = true, bool in_brackets = false);
  NodePtr list(int line);
  NodePtr dict(int line);
  NodePtr postfix(NodePtr node);
  NodePtr attribute(NodePtr node, int line);
  NodePtr element(NodePtr node, int line);
  NodePtr slice(NodePtr node, NodePtr begin, int line);
  NodePtr filter_expression(NodePtr node);
  NodePtr call(NodePtr node);
  void call_arguments(Node& node);
  std::string dotted_name();
  NodePtr filters(NodePtr node, bool starts_inline = false);
  NodePtr test(NodePtr node);

  std::vector<Token> tokens_;
  const Limits& limits_;
  size_t at_ = 0;
  Tree tree_;
  std::map<std::string, int> indices_;
  std::vector<MacroSignature*> macros_;  // macros whose body is being parsed
  int nesting_ = 0;
};

}  // namespace colossal::text::jinja
