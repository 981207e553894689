// Passes the quantized matrices of a folder to parameters that are stored as their codes (nn/frozen_form.h).
//
//   for (const auto& [name, matrices] : checkpoint::coded_matrices(folder, parameters, names))
//     parameters.store_as(parameters.at(name), nn::make_folder_form(parameters.at(name), matrices, here));
//   checkpoint::import_weights(folder, parameters, names);          // copies the codes
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/hugging_face/local_parts.h"
#include "colossal/nn/frozen_form.h"

namespace colossal::checkpoint {

/// Returns the matrices of the folder that hold a parameter, by its name, if all of them are quantized: for
/// nn::make_folder_form(). Of a stack they are those of each entry, which all have one form. Parameters that the folder
/// lacks and may lack are left out. Errors: those of import_weights(). Cost: reads headers, and tensors that are small
/// beside the matrices.
std::map<std::string, std::vector<nn::FolderMatrix>> coded_matrices(const std::string& folder,
                                                                    const nn::Parameters& parameters,
                                                                    const ExternalNames& external);

/// The tensors that hold one parameter.
using Sources = std::vector<const PartSource*>;

/// Returns the matrices that hold a weight, or each entry of a stack; none = some are not quantized, or entries have
/// them in other forms. Matrices of a stack have minima if those of one entry have. Errors: those of
/// WeightSource::codes_form().
std::optional<std::vector<nn::FolderMatrix>> coded_matrices_of(const Sources& sources, const WeightSource& files);

/// Writes the codes to `to`, the whole value of a parameter on this rank, whose form is that of coded_matrices_of().
/// `value` has the spec of the parameter. Errors ("quantization"): codes of another form; damaged files.
void copy_codes(const Sources& sources, const WeightSource& files, const NamedTensor& value, const at::Tensor& to,
                const nn::FrozenForm& form, const tensor::MeshCoordinates& coordinates);

}  // namespace colossal::checkpoint
