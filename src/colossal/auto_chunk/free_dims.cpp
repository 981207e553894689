#include "colossal/auto_chunk/free_dims.h"

#include <cctype>
#include <map>
#include <sstream>

#include "colossal/base/error.h"
#include "colossal/plan/operators.h"

namespace colossal::auto_chunk {
namespace {

using Shape = std::vector<int64_t>;

/// Dimensions that run together get one index; only those that the output has, and that have one size, are free.
class Dims {
 public:
  Dims(const trace::TracedModule& traced, int node) : output_shape_(traced.graph.nodes[node].output.shape) {
    for (const plan::Source source : traced.graph.operands[node]) shapes_.push_back(traced.graph.type_of(source).shape);
    for (const Shape& shape : shapes_) made.operands.emplace_back(shape.size(), -1);
    made.output.assign(output_shape_.size(), -1);
  }

  void of_plan(const plan::Graph& graph, int node) {
    plan::IndexedOperator indexed;
    try {
      indexed = plan::index_operator(graph, node);
    } catch (const Error&) {
      return;  // operands that plans do not take
    }
    if (!indexed.is_known || indexed.work == plan::Work::Source) return;
    const auto splits = [&](int index) {
      return index >= 0 && indexed.indices[index].splits && !indexed.indices[index].summed ? index : -1;
    };
    for (size_t i = 0; i < indexed.operands.size(); ++i)
      for (size_t dim = 0; dim < indexed.operands[i].size(); ++dim)
        made.operands[i][dim] = splits(indexed.operands[i][dim]);
    for (size_t dim = 0; dim < indexed.output.size(); ++dim) made.output[dim] = splits(indexed.output[dim]);
  }

  /// Reads what an operator of the library announced. Terms are those of all its operands, also of undefined ones.
  void of_terms(const trace::TracedOperator& run) {
    const size_t arrow = run.dims.find("->");
    if (arrow == std::string::npos) return;
    std::vector<std::string> terms;
    std::istringstream list(run.dims.substr(0, arrow));
    for (std::string term; std::getline(list, term, ',');) terms.push_back(term);
    read_term(run.dims.substr(arrow + 2), output_shape_, made.output);
    for (const trace::TracedOperator::Place& place : run.places)
      read_term(terms.at(place.argument), shapes_[place.operand], made.operands[place.operand]);
  }

  /// Takes the index from dimensions whose index has other sizes, or that the output lacks.
  void settle() {
    std::map<int, int64_t> sizes;
    for (size_t dim = 0; dim < made.output.size(); ++dim) {
      const int index = made.output[dim];
      if (index >= 0 && !sizes.emplace(index, output_shape_[dim]).second) sizes[index] = -1;  // a diagonal
    }
    for (size_t i = 0; i < shapes_.size(); ++i)
      for (size_t dim = 0; dim < shapes_[i].size(); ++dim) {
        const auto found = sizes.find(made.operands[i][dim]);
        if (found != sizes.end() && found->second != shapes_[i][dim]) found->second = -1;
      }
    const auto keep = [&](int& index) {
      const auto found = sizes.find(index);
      if (found == sizes.end() || found->second < 0) index = -1;
    };
    for (int& index : made.output) keep(index);
    for (std::vector<int>& operand : made.operands)
      for (int& index : operand) keep(index);
  }

  NodeDims made;

 private:
  void read_term(const std::string& term, const Shape& shape, std::vector<int>& indices) {
    const bool leads = term.rfind("...", 0) == 0;
    const std::string letters = leads ? term.substr(3) : term;
    require(shape.size() >= letters.size() && (leads || shape.size() == letters.size()), "auto_chunk",
            "an announced operator must have the dimensions of its terms: got ", term, " for ",
            plan::print_shape(shape));
    const size_t leading = shape.size() - letters.size();
    for (size_t dim = 0; dim < leading; ++dim) indices[dim] = static_cast<int>(dim);
    for (size_t i = 0; i < letters.size(); ++i)
      if (std::islower(static_cast<unsigned char>(letters[i]))) indices[leading + i] = 1000 + letters[i];
  }

  Shape output_shape_;
  std::vector<Shape> shapes_;
};

}  // namespace

NodeDims free_dims(const trace::TracedModule& traced, int node) {
  const trace::TracedOperator& run = traced.operators[node];
  Dims dims(traced, node);
  const bool has_neighbours = (node > 0 && run.call >= 0 && traced.operators[node - 1].call == run.call) ||
                              (node + 1 < static_cast<int>(traced.operators.size()) && run.call >= 0 &&
                               traced.operators[node + 1].call == run.call);
  if (has_neighbours || run.result != 0) return dims.made;
  if (run.whole)
    dims.of_terms(run);
  else if (run.handle)
    dims.of_plan(traced.graph, node);
  dims.settle();
  return dims.made;
}

}  // namespace colossal::auto_chunk
