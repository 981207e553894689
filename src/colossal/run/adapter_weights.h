// Trained adapters that are put onto a model: kept apart from its weights, or merged into them.
//
//   const auto adapters = run::read_adapters(run::open_adapters("adapters/poet"), shape, mesh);
//   run::merge_adapters(adapters, parameters, tensors, mesh);        // W + s B A
//
// In the functions below `tensors` are those of one model in `parameters`, filled with the values of the base. The
// caller may have them in part.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "colossal/checkpoint/checkpoint.h"
#include "colossal/comm/mesh.h"
#include "colossal/models/shape.h"
#include "colossal/nn/parameter.h"
#include "colossal/run/adapter_modules.h"
#include "colossal/run/adapter_source.h"

namespace colossal::run {

/// Returns the name of a matrix of the adapter of a module, 'a', 'b' or 'm': "blocks.0.attention.qkv.adapter_a.q_proj".
std::string matrix_name(const LinearModule& module, char matrix);

/// The adapter of one linear layer.
struct AdapterLayer {
  LinearModule module{};
  /// [r, in], [out, r]; of a stack of experts [experts, r, in], [experts, out, r]; A of a convolution [r, in, rows,
  /// columns]. Outputs have the order of the parameter
  at::Tensor a{}, b{};
  /// DoRA's m [out] (`is_change`: less the norms of the rows of W); undefined = none
  at::Tensor magnitude{};
  bool is_change = false;
  double scale = 1;
};

/// All adapters of a source, whole on the host of each rank.
struct AdapterWeights {
  std::vector<AdapterLayer> layers{};
  /// Tensors that were trained whole: those of a folder of peft by their names there, or the parameters and buffers of
  /// a run's checkpoint by their names
  std::map<std::string, at::Tensor> folder_tensors{}, parameters{};
  /// Names of the parameters and buffers of the model that are trained whole or are matrices of adapters. All others
  /// are those of the base
  std::set<std::string> provided{};

  /// Returns the names of the weights that have adapters.
  std::set<std::string> adapted() const;
};

/// Reads the adapters of a source for a model of `shape` (shape_with()). Collective among all ranks of `mesh`, which
/// agree on the checkpoint of rank 0.
/// Errors ("adapter"): adapters of other modules or shapes than the model's. Errors of checkpoint::load().
AdapterWeights read_adapters(const AdapterSource& source, const models::ModelShape& shape, comm::Mesh& mesh);

/// Returns the adapters with the names that the model `model` of a run has; empty = the main one, whose names have no
/// prefix.
AdapterWeights of_model(AdapterWeights adapters, const std::string& model);

/// Writes the parameters that were trained whole, and the matrices of adapters if the model has them
/// (low_rank_adapter()), into `tensors`. Collective among all ranks of `mesh`, which agree on errors. Communication:
/// with magnitudes of peft an all_reduce of 8 bytes per output of the adapted layers.
/// `model`: the model that has the tensors, if `adapters` are those of of_model().
/// Errors ("adapter"): tensors of another shape, or for only a part of a parameter.
void fill_adapters(const AdapterWeights& adapters, const models::ModelShape& shape, const nn::Parameters& parameters,
                   const std::vector<checkpoint::NamedTensor>& tensors, comm::Mesh& mesh,
                   const std::string& model = "");

/// Adds s B A to the weights in `tensors`, or scales the rows of the sum to m (DoRA). The sums are of fp32, or fp64 for
/// weights of fp64, and are rounded once to the dtype of the tensor. Collective among all ranks of `mesh`, which agree
/// on errors. Communication: with magnitudes an all_reduce of 16 bytes per output of the adapted layers.
void merge_adapters(const AdapterWeights& adapters, const nn::Parameters& parameters,
                    const std::vector<checkpoint::NamedTensor>& tensors, comm::Mesh& mesh);

/// Adds s B A to `value`, the content of `tensor`, in the same way. Every row is whole on this rank. No communication.
void merge_whole(const AdapterWeights& adapters, const nn::Parameters& parameters,
                 const checkpoint::NamedTensor& tensor, const at::Tensor& value);

/// Returns the norms of the rows of the weights that have magnitudes, of W without adapters, in fp64, by name of the
/// weight. Collective, and communication, as fill_adapters() with magnitudes.
std::map<std::string, at::Tensor> row_norms(const AdapterWeights& adapters, const nn::Parameters& parameters,
                                            const std::vector<checkpoint::NamedTensor>& tensors, comm::Mesh& mesh);

}  // namespace colossal::run
