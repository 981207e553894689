// What a template is parsed to.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/text/jinja/value.h"

namespace colossal::text::jinja {

enum class NodeKind {
  // Expressions. `parts` unless said otherwise: the operands from left to right.
  Constant,  ///< value
  Name,      ///< name
  List,
  Tuple,
  Dict,       ///< key, value, key, value ...
  Attribute,  ///< of parts[0]: text
  Element,    ///< parts[0][parts[1]]
  Slice,      ///< parts[0][parts[1] : parts[2] : parts[3]], each of the last three perhaps null
  Call,       ///< parts[0](call)
  Filter,     ///< parts[0]|text(call), parts[0] null for what a block renders
  Test,       ///< parts[0] is text(call)
  Choice,     ///< parts[0] if parts[1] else parts[2], the last perhaps null
  Or,
  And,
  Not,
  Compare,  ///< parts[0] operators[0] parts[1] operators[1] parts[2] ...
  Concat,
  Add,
  Subtract,
  Multiply,
  Divide,
  FloorDivide,
  Modulo,
  Power,
  Negative,
  Positive,
  // Targets of assignments are Name, Tuple and this.
  NamespaceTarget,  ///< name.text
  // Statements.
  Data,         ///< text
  Print,        ///< each of parts
  Set,          ///< parts[0] = parts[1]
  SetBlock,     ///< parts[0] = body, through the filters of parts[1], perhaps null
  If,           ///< parts[0], body, otherwise: an elif is an If alone there
  For,          ///< parts[0] in parts[1] if parts[2], perhaps null; body, otherwise; is_marked: recursive
  Macro,        ///< name, macro
  CallBlock,    ///< parts[0], a Call; macro
  FilterBlock,  ///< parts[0], a Filter; body
  With,         ///< target, value, target, value ...; body
  Block,        ///< text; body; is_marked: scoped
  Generation,   ///< body: what the assistant says
  Break,
  Continue,
  Absent,  ///< extends, include, import: text. There is nothing to load from.
};

enum class Comparison { Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual, In, NotIn };

struct Node;
using NodePtr = std::unique_ptr<Node>;

struct CallArguments {
  std::vector<NodePtr> positional;
  std::vector<std::pair<std::string, NodePtr>> named;
  NodePtr spread, spread_named;  ///< *spread, **spread_named
};

struct MacroSignature {
  std::string name;  ///< empty: of a call block
  std::vector<int> parameters;
  std::vector<std::string> parameter_names;
  std::vector<NodePtr> defaults;  ///< of the last parameters
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};

struct Node {
  Node(NodeKind node_kind, int node_line) : kind(node_kind), line(node_line) {}
  NodeKind kind;
  int line;
  int depth = 1;  ///< nodes within each other
  int name = -1;  ///< index of a name in the tree's names
  bool is_marked = false;
  std::string text;
  Value value;
  std::vector<NodePtr> parts;
  std::vector<Comparison> operators;
  std::unique_ptr<CallArguments> call;
  std::unique_ptr<MacroSignature> macro;
  std::vector<NodePtr> body, otherwise;
};

/// A template that can be rendered any number of times, by several threads at once.
struct Tree {
  std::vector<NodePtr> body;
  std::vector<std::string> names;  ///< of variables
  std::map<std::string, const Node*, std::less<>> blocks;
};

/// Errors: Failure with the line: what is no template, or beyond the limits.
Tree parse(std::string_view source, const Limits& limits);

}  // namespace colossal::text::jinja
