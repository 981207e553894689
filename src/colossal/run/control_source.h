// Where the weights of a ControlNet are (models/unet_control_net.h): a folder of diffusers' ControlNetModel, or a run
// with adapter.kind = "controlnet".
//
//   const models::ModelShape whole = models::with_control(unet, run::control_of("sd-controlnet-canny", unet));
//   ...                                                        // the model is made, and `tensors` are its parameters
//   auto own = run::take_control(parameters, tensors);         // those of the ControlNet, which its base does not have
//   run::fill_control("sd-controlnet-canny", whole, parameters, own, mesh);
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/checkpoint/checkpoint.h"
#include "colossal/comm/mesh.h"
#include "colossal/models/shape.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/parameter.h"
#include "colossal/run/adapter_choice.h"
#include "colossal/run/adapter_kinds.h"
#include "colossal/run/saved_model.h"

namespace colossal::run {

struct ModelSource;

/// Value of adapter.kind of a run that trains a ControlNet.
inline constexpr char kControlKind[] = "controlnet";

/// Returns true for a run that trained a ControlNet.
bool is_control_run(const std::string& path);

/// Returns the ControlNet at a path, for the model of `shape`. It reads no weights.
/// Errors ("adapter"): a path of another kind; those of models::control_from_diffusers(), also for a run.
models::OwnControl control_of(const std::string& path, const models::ModelShape& shape);

/// Returns the shape with the ControlNet of a choice, weighed by its scale. Errors: those of control_of() and
/// models::with_control().
models::ModelShape with_control(models::ModelShape shape, const AdapterChoice& choice);

/// Returns the ControlNet that a run trains: that of `from`, or a new one for pictures with `factor` pixels a side of a
/// cell. Errors ("adapter"): those of control_of(); a factor that is no power of 2, or not that of the ControlNet, with
/// both numbers.
models::OwnControl trained_control(const std::string& from, const models::ModelShape& shape, int64_t factor);

/// Checks that a ControlNet reads pictures with `factor` pixels a side of a cell. Errors ("adapter"): it does not.
void check_control_factor(const models::OwnControl& control, int64_t factor, const std::string& path);

/// Returns the row of adapter.kind = kControlKind: the ControlNet within a model alone trains and is saved.
AdapterKind control_kind();

/// Moves the parameters of the ControlNet from `tensors` into the result.
std::vector<checkpoint::NamedTensor> take_control(const nn::Parameters& parameters,
                                                  std::vector<checkpoint::NamedTensor>& tensors);

/// Writes the ControlNet at a path into `tensors`, the result of take_control(). `shape` is that of the model with it.
/// `uses_average`: of a run with training.ema. `base`: the source of the model's other weights, which must be those on
/// which a run trained the ControlNet; null = not checked.
/// Collective among all ranks of `mesh`. Errors ("hugging face"): tensors that the folder lacks or that no layer has,
/// all listed. ("run") another base. Those of checkpoint::load().
void fill_control(const std::string& path, const models::ModelShape& shape, const nn::Parameters& parameters,
                  std::vector<checkpoint::NamedTensor> tensors, comm::Mesh& mesh, bool uses_average = true,
                  const ModelSource* base = nullptr);

/// Writes the values with which a new ControlNet starts into `tensors`: those of the layers of `base` of which it is a
/// copy. Layers of its own keep their values, and of a preset all do. Collective, as read_source().
void copy_into_control(const ModelSource& base, const nn::Parameters& parameters,
                       const std::vector<checkpoint::NamedTensor>& tensors, comm::Mesh& mesh);

/// Writes the ControlNet of a run as a folder of diffusers' ControlNetModel. `saved` is its base. Collective among all
/// ranks of `mesh`. Errors: those of fill_control() and checkpoint::export_weights().
void export_control(const std::string& to, const SavedModel& saved, const std::string& run, comm::Mesh& mesh,
                    bool uses_average = true);

}  // namespace colossal::run
