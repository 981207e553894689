#include <algorithm>

#include "colossal/base/join.h"
#include "colossal/text/jinja/expression_parser.h"
#include "colossal/text/jinja/filters.h"

namespace colossal::text::jinja {
namespace {

/// A parser of jinja2's statements and of the blocks that transformers adds.
class Parser : ExpressionParser {
 public:
  Parser(std::vector<Token> tokens, const Limits& limits) : ExpressionParser(std::move(tokens), limits) {}

  Tree run() {
    tree_.body = statements({});
    return std::move(tree_);
  }

 private:
  /// Parses up to a block that starts with one of `ends`. The current token is then its name.
  Nodes statements(const Ends& ends) {
    const Nested nested(*this);
    Nodes body;
    while (now().kind != TokenKind::End) {
      const int line = now().line;
      if (now().kind == TokenKind::Data) {
        body.push_back(make_text_node(NodeKind::Data, line, take().text));
      } else if (now().kind == TokenKind::PrintBegin) {
        take();
        body.push_back(make(NodeKind::Print, line, tuple()));
        expect(TokenKind::PrintEnd, "end of print statement");
      } else {
        expect(TokenKind::BlockBegin, "begin of statement block");
        if (is_end(ends)) return body;
        body.push_back(statement(ends));
        expect(TokenKind::BlockEnd, "end of statement block");
      }
    }
    if (!ends.empty())
      refuse("Unexpected end of template. Jinja was looking for the following tags: " + listed(ends) + innermost());
    return body;
  }

  static std::string listed(const Ends& ends) {
    return colossal::join(ends, " or ", [](std::string_view end) { return concat("'", end, "'"); }) + ".";
  }

  std::string innermost() const {
    if (open_.empty()) return {};
    return concat(" The innermost block that needs to be closed is '", open_.back(), "'.");
  }

  /// Parses the body of a statement after its head. The name of its end remains as the current token.
  Nodes block(Node& node, const Ends& ends) {
    skip_operator(":");
    expect(TokenKind::BlockEnd, "end of statement block");
    Nodes body = statements(ends);
    for (const NodePtr& part : body) deepen(node, part);
    return body;
  }

  void block_to(Node& node, const char* end) {
    node.body = block(node, {end});
    take();
  }

  NodePtr statement(const Ends& ends) {
    if (now().kind != TokenKind::Name) refuse("tag name expected");
    const Token tag = take();
    using Rule = NodePtr (Parser::*)(int);
    static const std::map<std::string_view, Rule> rules{{"set", &Parser::set},
                                                        {"if", &Parser::if_},
                                                        {"for", &Parser::for_},
                                                        {"macro", &Parser::macro},
                                                        {"call", &Parser::call_block},
                                                        {"filter", &Parser::filter_block},
                                                        {"with", &Parser::with},
                                                        {"block", &Parser::named_block},
                                                        {"print", &Parser::print},
                                                        {"break", &Parser::break_},
                                                        {"continue", &Parser::continue_},
                                                        {"generation", &Parser::generation},
                                                        {"include", &Parser::include},
                                                        {"extends", &Parser::extends},
                                                        {"import", &Parser::import},
                                                        {"from", &Parser::from}};
    if (tag.text == "autoescape") throw Failure(Cause::Unsupported, "the tag 'autoescape' is not supported", tag.line);
    const auto rule = rules.find(tag.text);
    if (rule == rules.end()) refuse_tag(tag, ends);
    open_.push_back(tag.text);
    NodePtr node = (this->*rule->second)(tag.line);
    open_.pop_back();
    return node;
  }

  [[noreturn]] void refuse_tag(const Token& tag, const Ends& ends) const {
    std::string message = concat("Encountered unknown tag ", repr_of_text(tag.text), ".");
    if (!ends.empty()) message += " Jinja was looking for the following tags: " + listed(ends);
    refuse(message + innermost(), tag.line);
  }

  NodePtr set(int line) {
    NodePtr target_node = target(true);
    if (skip_operator("=")) return make(NodeKind::Set, line, std::move(target_node), tuple());
    NodePtr filter;
    if (now().is_operator("|")) filter = filters(nullptr);
    NodePtr node = make(NodeKind::SetBlock, line, std::move(target_node), std::move(filter));
    block_to(*node, "endset");
    return node;
  }

  NodePtr if_(int line) {
    NodePtr node = make(NodeKind::If, line, tuple(false));
    node->body = block(*node, {"elif", "else", "endif"});
    // An elif belongs to the `otherwise` part. All elifs are stored in one list, not nested.
    std::vector<NodePtr> elifs;
    while (true) {
      const Token end = take();
      if (end.text == "elif") {
        NodePtr next = make(NodeKind::If, end.line, tuple(false));
        next->body = block(*next, {"elif", "else", "endif"});
        elifs.push_back(std::move(next));
        continue;
      }
      if (end.text == "else") {
        auto other = std::make_unique<Node>(NodeKind::If, end.line);
        other->body = block(*other, {"endif"});
        elifs.push_back(std::move(other));
        take();
      }
      break;
    }
    for (const NodePtr& part : elifs) deepen(*node, part);
    node->otherwise = std::move(elifs);
    return node;
  }

  NodePtr for_(int line) {
    NodePtr target_node = target(false);
    require_no_loop(*target_node);
    expect_name("in");
    NodePtr items = tuple(false);
    NodePtr test;
    if (skip_name("if")) test = expression();
    NodePtr node = make(NodeKind::For, line, std::move(target_node), std::move(items), std::move(test));
    node->is_marked = skip_name("recursive");
    const int outer_loops = std::exchange(loops_, loops_ + 1);
    node->body = block(*node, {"endfor", "else"});
    loops_ = outer_loops;
    if (take().text == "else") {
      node->otherwise = block(*node, {"endfor"});
      take();
    }
    return node;
  }

  void require_no_loop(const Node& target_node) const {
    if (target_node.kind == NodeKind::Name && tree_.names[static_cast<size_t>(target_node.name)] == "loop")
      throw Failure(Cause::Assertion, "Can't assign to special loop variable in for-loop target", target_node.line);
    for (const NodePtr& part : target_node.parts) require_no_loop(*part);
  }

  NodePtr break_(int line) { return jump(NodeKind::Break, "break", line); }
  NodePtr continue_(int line) { return jump(NodeKind::Continue, "continue", line); }

  NodePtr jump(NodeKind kind, const char* name, int line) {
    if (loops_ == 0) refuse(concat("'", name, "' outside loop"), line);
    return std::make_unique<Node>(kind, line);
  }

  void signature(MacroSignature& macro) {
    expect_operator("(");
    while (!now().is_operator(")")) {
      if (!macro.parameters.empty()) expect_operator(",");
      const Token name = expect(TokenKind::Name, "name");
      if (skip_operator("="))
        macro.defaults.push_back(expression());
      else if (!macro.defaults.empty())
        refuse("non-default argument follows default argument");
      macro.parameters.push_back(index_of(name.text));
      macro.parameter_names.push_back(name.text);
    }
    expect_operator(")");
  }

  /// Parses a body that runs on its own, so break and continue cannot leave a loop around it.
  void macro_body(Node& node, const char* end) {
    for (const NodePtr& part : node.macro->defaults) deepen(node, part);
    const int outer_loops = std::exchange(loops_, 0);
    macros_.push_back(node.macro.get());
    block_to(node, end);
    macros_.pop_back();
    loops_ = outer_loops;
    MacroSignature& macro = *node.macro;
    const auto place = [&](const char* name) {
      return static_cast<size_t>(std::find(macro.parameter_names.begin(), macro.parameter_names.end(), name) -
                                 macro.parameter_names.begin());
    };
    const size_t count = macro.parameter_names.size(), caller = place("caller");
    if (macro.uses_caller && caller < count - macro.defaults.size())
      throw Failure(Cause::Assertion,
                    "When defining macros or call blocks the special \"caller\" argument must be omitted or be given a "
                    "default.",
                    node.line);
    macro.uses_caller &= caller == count;
    macro.uses_varargs &= place("varargs") == count;
    macro.uses_kwargs &= place("kwargs") == count;
  }

  NodePtr macro(int line) {
    auto node = std::make_unique<Node>(NodeKind::Macro, line);
    node->macro = std::make_unique<MacroSignature>();
    node->macro->name = expect(TokenKind::Name, "name").text;
    node->name = index_of(node->macro->name);
    signature(*node->macro);
    macro_body(*node, "endmacro");
    return node;
  }

  NodePtr call_block(int line) {
    auto macro_node = std::make_unique<MacroSignature>();
    if (now().is_operator("(")) signature(*macro_node);
    NodePtr call = expression();
    if (call->kind != NodeKind::Call) refuse("expected call", line);
    NodePtr node = make(NodeKind::CallBlock, line, std::move(call));
    node->macro = std::move(macro_node);
    macro_body(*node, "endcall");
    return node;
  }

  NodePtr generation(int line) {
    auto node = std::make_unique<Node>(NodeKind::Generation, line);
    const int outer_loops = std::exchange(loops_, 0);
    block_to(*node, "endgeneration");
    loops_ = outer_loops;
    return node;
  }

  NodePtr filter_block(int line) {
    NodePtr node = make(NodeKind::FilterBlock, line, filters(nullptr, true));
    block_to(*node, "endfilter");
    return node;
  }

  NodePtr with(int line) {
    auto node = std::make_unique<Node>(NodeKind::With, line);
    while (now().kind != TokenKind::BlockEnd && now().kind != TokenKind::End) {
      if (!node->parts.empty()) expect_operator(",");
      add(*node, target(false));
      expect_operator("=");
      add(*node, expression());
    }
    block_to(*node, "endwith");
    return node;
  }

  NodePtr named_block(int line) {
    NodePtr node = make_text_node(NodeKind::Block, line, expect(TokenKind::Name, "name").text);
    node->is_marked = skip_name("scoped");
    if (skip_name("required"))
      throw Failure(Cause::Unsupported, "blocks that other templates fill are not supported", line);
    if (now().is_operator("-"))
      refuse(
          "Block names in Jinja have to be valid Python identifiers and may not contain hyphens, use an underscore "
          "instead.");
    if (!tree_.blocks.emplace(node->text, node.get()).second)
      throw Failure(Cause::Assertion, concat("block ", repr_of_text(node->text), " defined twice"), line);
    const int outer_loops = std::exchange(loops_, 0);
    block_to(*node, "endblock");
    loops_ = outer_loops;
    skip_name(node->text);
    return node;
  }

  NodePtr print(int line) {
    auto node = std::make_unique<Node>(NodeKind::Print, line);
    while (now().kind != TokenKind::BlockEnd && now().kind != TokenKind::End) {
      if (!node->parts.empty()) expect_operator(",");
      add(*node, expression());
    }
    return node;
  }

  NodePtr absent(int line, const char* tag) {
    while (now().kind != TokenKind::BlockEnd && now().kind != TokenKind::End) take();
    return make_text_node(NodeKind::Absent, line, tag);
  }

  NodePtr include(int line) { return absent(line, "include"); }
  NodePtr extends(int line) { return absent(line, "extends"); }
  NodePtr import(int line) { return absent(line, "import"); }
  NodePtr from(int line) { return absent(line, "from"); }

  /// Parses the target of an assignment: a name, a tuple of targets, or with `with_namespace` also name.attribute.
  NodePtr target(bool with_namespace) {
    const int line = now().line;
    Nodes parts;
    bool is_tuple = false;
    while (true) {
      if (!parts.empty()) expect_operator(",");
      if (!parts.empty() && is_tuple_end()) break;
      parts.push_back(single_target(with_namespace));
      if (!now().is_operator(",")) break;
      is_tuple = true;
    }
    if (!is_tuple) return std::move(parts[0]);
    auto node = std::make_unique<Node>(NodeKind::Tuple, line);
    for (NodePtr& part : parts) add(*node, std::move(part));
    return node;
  }

  NodePtr single_target(bool with_namespace) {
    const Nested nested(*this);
    const int line = now().line;
    if (skip_operator("(")) {
      NodePtr node = target(with_namespace);
      expect_operator(")");
      return node;
    }
    if (now().kind != TokenKind::Name) refuse(concat("can't assign to ", repr_of_text(describe(now()))));
    const Token name = take();
    for (const char* constant : {"true", "false", "none", "True", "False", "None"})
      if (name.text == constant) refuse("can't assign to 'const'", line);
    if (!with_namespace || !skip_operator(".")) {
      auto node = std::make_unique<Node>(NodeKind::Name, line);
      node->name = index_of(name.text);
      return node;
    }
    NodePtr node = make_text_node(NodeKind::NamespaceTarget, line, expect(TokenKind::Name, "name").text);
    node->name = index_of(name.text);
    return node;
  }

  std::vector<std::string> open_;  // tags that are still open
  int loops_ = 0;                  // number of enclosing loops that break can leave
};

}  // namespace

Tree parse(std::string_view source, const Limits& limits) {
  if (static_cast<int64_t>(source.size()) > limits.template_bytes)
    fail(Cause::Limit, "a template must have at most ", limits.template_bytes, " bytes (Limits::template_bytes): got ",
         source.size());
  Tree tree = Parser(tokenize(source), limits).run();
  require_known_filters(tree);
  return tree;
}

}  // namespace colossal::text::jinja
