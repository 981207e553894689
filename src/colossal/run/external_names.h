// The names of a model's parameters in a folder of transformers or diffusers, as checkpoint::import_weights() and
// export_weights() take them.
//
//   checkpoint::import_weights(folder, parameters, run::external_names(shape));
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape.h"

namespace colossal::run {

/// Returns the names that folders of the architecture of `shape` use for its parameters, and the further tensors that a
/// folder may contain. `may_lack`: ExternalNames::may_lack, in addition to those of the architecture, which must have
/// the form of transformers or of diffusers. Cost: the model is declared once, without memory.
checkpoint::ExternalNames external_names(const models::ModelShape& shape, std::vector<std::string> may_lack = {});

/// Returns patterns of the parameters of a head that a model from which training starts may lack, because a run can
/// give it another head (models::HuggingFace::own_head, models::with_outputs).
std::vector<std::string> head_that_may_lack(const models::ModelShape& shape);

/// Returns a notice if the folder holds tensors of a part that the architecture does not have (HuggingFace::left_out).
/// Errors and cost: those of checkpoint::find_tensor.
std::optional<std::string> notice_of_left_out(const std::string& folder, const models::ModelShape& shape);

/// Sets the number of multi-token layers in `config`, the config.json of the folder, to 0 if the folder lacks the
/// weights of one of them, and returns a notice that names the key. Callers that draw no initial values need it,
/// because the layers would have arbitrary ones. Errors and cost: those of checkpoint::find_tensor and
/// models::Registry::shape_of.
std::optional<std::string> drop_missing_layers(const std::string& folder, nlohmann::json& config,
                                               const models::Registry& registry);

}  // namespace colossal::run
