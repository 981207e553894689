// The indices of an operator: which dimensions of its operands and of its output run together, and which may be split.
//
// A linear layer has an index for each dimension of its rows, `in` and `out`. Its input has the rows and `in`, its
// weight `out` and `in`, its output the rows and `out`; `in` is summed. Strategies (plan/strategies.h) assign the axes
// of a mesh to indices. The rows of an embedding's table are its index `in`: ranks with blocks of it look up the ids of
// their rows, and zeros for all others. The classes of cross_entropy with integer targets are an index, too.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/plan/graph.h"

namespace colossal::plan {

/// What the time of an operator depends on.
enum class Work : uint8_t {
  Product,  ///< floating-point operations
  Memory,   ///< bytes that are read and written
  View,     ///< nothing: the output has the memory of the first operand
  Source    ///< nothing: an input, or a constant of the graph
};

/// One index of an operator.
struct Index {
  std::string name;
  bool splits = true;   ///< ranks may have blocks of it
  bool summed = false;  ///< the output does not have it: blocks give partial sums
};

/// An operator in terms of indices. A dimension without an index (-1) is whole on every rank.
struct IndexedOperator {
  std::vector<Index> indices;
  std::vector<std::vector<int>> operands;  ///< for each operand the index of each dimension
  std::vector<int> output;                 ///< the index of each dimension of the output
  Work work = Work::Memory;
  double operations = 0;         ///< floating-point operations of the forward pass on one rank
  bool is_known = true;          ///< false = the operator is not in operator_names(): it runs whole on every rank
  bool saves_operands = false;   ///< the backward pass reads the operands
  bool saves_output = false;     ///< the backward pass reads the output
  int64_t statistics_bytes = 0;  ///< summed over the axes of `dim0` in forward and in backward (batch norm)
  /// Bytes of the partial sums that an axis on a summed index leaves; 0 = those of the output. A loss over classes sums
  /// the weights of its rows, too.
  int64_t partial_bytes = 0;
  bool scatters = false;  ///< partial sums of the output may be scattered (products, embedding)
  bool gathers = false;   ///< blocks of the first operand may be gathered by the operator (linear)
  /// Index of the classes of a loss, or -1. Ranks with blocks of it need the largest logit of each row, the sum of its
  /// exponentials and the logit of its target instead of a sum of the output.
  int classes = -1;
};

/// Returns the names of the operators that have strategies.
std::vector<std::string> operator_names();

/// Returns the indices of a node of a settled graph.
/// Errors ("graph"): the operator has another number of operands, or operands of other shapes, than it takes.
IndexedOperator index_operator(const Graph& graph, int node);

}  // namespace colossal::plan
