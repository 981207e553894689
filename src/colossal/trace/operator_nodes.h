// The operators of LibTorch that nodes of a plan::Graph stand for: their names there, and what strategies ask of them.
//
//   if (const OperatorRow* row = find_row("aten::softmax.int")) row->describe(call, node);   // sets node.dims
#pragma once
#include <string>
#include <vector>

#include "colossal/plan/graph.h"
#include "colossal/trace/heard_call.h"

namespace colossal::trace {

/// How an operator becomes a node.
struct OperatorRow {
  const char* name;  ///< "aten::add" for all overloads, or "aten::transpose.int" for one
  const char* op;    ///< plan::Node::op
  /// Sets `op`, `dims`, `groups` and `causal`; null = the row's `op` is all. Its tensors have the traced shapes.
  void (*describe)(const HeardCall& call, plan::Node& node) = nullptr;
  /// Returns results on meta, without memory; null = LibTorch has a kernel for meta. The C++ library has none for some
  /// operators. A Python process registers its own, so this table registers nothing.
  at::Tensor (*result)(const HeardCall& call) = nullptr;
};

/// Returns the row of a full name, of its overload first, or null.
const OperatorRow* find_row(const std::string& full_name);

/// Returns `dim` of a tensor with `dims` dimensions, from 0 on.
int64_t positive_dim(int64_t dim, int64_t dims);

}  // namespace colossal::trace
