// Frozen weights of a model that trains, kept as the quantized values that a folder has: codes of GPTQ, AWQ and GGUF
// files, and NF4.
//
//   nn::FrozenCodes codes;
//   options.products = {[&](auto product, auto& weight, auto&) { return codes.wrap(product, weight); }};
//   ...                                                          // a model is made of parameters without memory
//   for (nn::Parameter* p : codes.candidates(parameters)) codes.put(*p, matrices_of(*p));
//   memory::ChunkStore store(parameters, ...);                   // leaves these parameters out
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "colossal/nn/parameter.h"
#include "colossal/nn/product.h"
#include "colossal/ops/products/coded_matrix.h"
#include "colossal/ops/products/nf4_matrix.h"

namespace colossal::nn {

/// The codes of the frozen matrices of one model on this rank. It must outlive the products that it wraps.
///
/// Numbers:       those of products with the decoded weight in the dtype of x, except for the order of sums.
/// Gradients:     of x; the weights have none.
/// Memory:        the codes, and a slice of decoded values during a product (ops::CodedMatrix, ops::Nf4Matrix). The
///                values of the parameters have no memory.
/// Cost:          y and dx decode the weight once each, for all tokens.
/// Communication: only the products inside communicate.
/// Thread safety: none while put() is called; each rank of a process has its own object.
class FrozenCodes {
 public:
  /// A matrix [out, in] of this rank. Codes must be made with `decodes` (ops::CodedMatrix).
  using Matrix = std::variant<ops::CodedMatrix, ops::Nf4Matrix>;

  /// A wrapper for Parameters::Options::products. It computes as `product` until put() has given the weight codes, and
  /// then multiplies with these. Returns `product` itself if the weight cannot have codes, if the product gathers
  /// blocks, or if another stage holds the weight. Errors ("quantization"): an adapter inside.
  std::shared_ptr<const Product> wrap(std::shared_ptr<const Product> product, const Parameter& weight);
  /// Returns the parameters on this rank that may have codes: frozen matrices inside blocks, or stacks of them, that
  /// wrap() wrapped and that nothing but their products reads.
  std::vector<Parameter*> candidates(Parameters& parameters) const;
  /// Gives a candidate its matrices: one, or those of a stack in the order of this rank. Parameter::has_codes is true
  /// from then on. Call it before a chunk store is made of the parameters.
  void put(Parameter& parameter, std::vector<Matrix> matrices);
  /// Returns the bytes of all matrices.
  int64_t bytes() const;

  /// The matrices of one parameter; empty = its value is used.
  using Matrices = std::vector<Matrix>;

 private:
  std::map<std::string, std::shared_ptr<Matrices>> of_;  // by the names of parameters
};

}  // namespace colossal::nn
