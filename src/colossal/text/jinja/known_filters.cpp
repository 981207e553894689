#include "colossal/text/jinja/filters.h"
#include "colossal/text/jinja/print.h"

namespace colossal::text::jinja {
namespace {

void require_known(const Node& node, bool in_choice);
void require_known(const std::vector<NodePtr>& nodes, bool in_choice);

void require_known_arguments(const CallArguments& call, bool in_choice) {
  require_known(call.positional, in_choice);
  for (const auto& [name, value] : call.named) require_known(*value, in_choice);
  if (call.spread) require_known(*call.spread, in_choice);
  if (call.spread_named) require_known(*call.spread_named, in_choice);
}

void require_known(const Node& node, bool in_choice) {
  const bool is_filter = node.kind == NodeKind::Filter, is_test = node.kind == NodeKind::Test;
  const bool is_unknown = (is_filter && !find_filter(node.text)) || (is_test && !find_test(node.text));
  if (is_unknown && !in_choice)
    throw Failure(Cause::Assertion,
                  concat("No ", is_filter ? "filter" : "test", " named ", repr_of_text(node.text), "."), node.line);
  const bool chooses = node.kind == NodeKind::If || node.kind == NodeKind::Choice;
  const bool is_for = node.kind == NodeKind::For;
  for (size_t i = 0; i < node.parts.size(); ++i) {
    const bool is_inner =
        (is_for && i == 2) || (node.kind == NodeKind::SetBlock && i == 1) || node.kind == NodeKind::FilterBlock;
    if (node.parts[i]) require_known(*node.parts[i], chooses || (in_choice && !is_inner));
  }
  if (node.call) require_known_arguments(*node.call, in_choice);
  if (node.macro) require_known(node.macro->defaults, false);
  require_known(node.body, chooses);
  require_known(node.otherwise, chooses);
}

void require_known(const std::vector<NodePtr>& nodes, bool in_choice) {
  for (const NodePtr& node : nodes) require_known(*node, in_choice);
}

}  // namespace

void require_known_filters(const Tree& tree) { require_known(tree.body, false); }

}  // namespace colossal::text::jinja
