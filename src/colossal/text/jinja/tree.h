// The syntax tree of a template.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/text/jinja/value.h"

namespace colossal::text::jinja {

enum class NodeKind {
  // Expressions. `parts` are the operands from left to right unless the comment says otherwise.
  Constant,  ///< value
  Name,      ///< name
  List,
  Tuple,
  Dict,       ///< key, value, key, value ...
  Attribute,  ///< parts[0].text
  Element,    ///< parts[0][parts[1]]
  Slice,      ///< parts[0][parts[1] : parts[2] : parts[3]]; the last three may be null
  Call,       ///< parts[0](call)
  Filter,     ///< parts[0]|text(call); parts[0] is null for the output of a block
  Test,       ///< parts[0] is text(call)
  Choice,     ///< parts[0] if parts[1] else parts[2]; the last may be null
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
  // The targets of assignments are Name, Tuple and this kind.
  NamespaceTarget,  ///< name.text
  // Statements.
  Data,         ///< text
  Print,        ///< prints each of parts
  Set,          ///< parts[0] = parts[1]
  SetBlock,     ///< parts[0] = body, through the filters of parts[1], which may be null
  If,           ///< parts[0], body, otherwise; an elif is a single If in `otherwise`
  For,          ///< parts[0] in parts[1] if parts[2], which may be null; body, otherwise; is_marked = recursive
  Macro,        ///< name, macro
  CallBlock,    ///< parts[0], a Call; macro
  FilterBlock,  ///< parts[0], a Filter; body
  With,         ///< target, value, target, value ...; body
  Block,        ///< text; body; is_marked = scoped
  Generation,   ///< body: text of the assistant
  Break,
  Continue,
  Absent,  ///< extends, include, import: text; unsupported, because there are no other templates to load
};

enum class Comparison { Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual, In, NotIn };

struct Node;
using NodePtr = std::unique_ptr<Node>;

/// The arguments of a call.
struct CallArguments {
  std::vector<NodePtr> positional;
  std::vector<std::pair<std::string, NodePtr>> named;
  NodePtr spread, spread_named;  ///< *spread, **spread_named
};

/// The parameters of a macro or call block.
struct MacroSignature {
  std::string name;  ///< empty for a call block
  std::vector<int> parameters;
  std::vector<std::string> parameter_names;
  std::vector<NodePtr> defaults;  ///< default values of the last parameters
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};

/// A node of the tree. NodeKind says which members a kind uses.
struct Node {
  Node(NodeKind node_kind, int node_line) : kind(node_kind), line(node_line) {}
  NodeKind kind;
  int line;
  int depth = 1;  ///< height of the subtree; 1 for a node without parts
  int name = -1;  ///< index in Tree::names
  bool is_marked = false;
  std::string text;
  Value value;
  std::vector<NodePtr> parts;
  std::vector<Comparison> operators;
  std::unique_ptr<CallArguments> call;
  std::unique_ptr<MacroSignature> macro;
  std::vector<NodePtr> body, otherwise;
};

/// A parsed template. It can be rendered any number of times, by several threads at once.
struct Tree {
  std::vector<NodePtr> body;
  std::vector<std::string> names;  ///< names of variables
  std::map<std::string, const Node*, std::less<>> blocks;
};

/// Parses a template. Errors: Failure with the line: invalid syntax, or a limit is exceeded.
Tree parse(std::string_view source, const Limits& limits);

}  // namespace colossal::text::jinja
