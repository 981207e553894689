// Where the weights of an IP-adapter (models/unet_image_prompt.h) and of the encoder are whose embeddings it reads: a
// file ip-adapter*.safetensors, or a folder that has one, with the folder image_encoder beside it, or a run with
// adapter.kind = "ip-adapter".
//
//   const models::ModelShape whole = models::with_image_prompt(unet, run::image_prompt_of("ip-adapter", unet));
//   ...                                                        // the model is made, and `tensors` are its parameters
//   auto own = run::take_image_prompt(parameters, tensors);    // those of the IP-adapter, which its base does not have
//   run::fill_image_prompt("ip-adapter", whole, parameters, own, mesh);
//   run::image_encoder_of("ip-adapter").path;                  // "ip-adapter/image_encoder"
#pragma once
#include <cstdint>
#include <string>

#include "colossal/comm/mesh.h"
#include "colossal/models/shape.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/parameter.h"
#include "colossal/run/adapter_choice.h"
#include "colossal/run/adapter_kinds.h"
#include "colossal/run/added_part.h"
#include "colossal/run/image_encoder_source.h"
#include "colossal/run/low_rank_keys.h"
#include "colossal/run/saved_model.h"

namespace colossal::run {

struct ModelSource;

/// Value of adapter.kind of a run that trains an IP-adapter.
inline constexpr char kImagePromptKind[] = "ip-adapter";

/// Returns true for a run that trained an IP-adapter.
bool is_image_prompt_run(const std::string& path);

/// Returns the encoder of an IP-adapter. Errors ("adapter"): no folder image_encoder beside the file.
ImageEncoderSource image_encoder_of(const std::string& path);

/// Returns the IP-adapter at a path, for the model of `shape`. It reads no weights.
/// Errors ("adapter"): a path of another kind; several such files in a folder; a file of Python objects (.bin), which
/// can run code; a projection of another kind (plus, full, FaceID); features or attentions of another base, with both
/// numbers; an encoder of other features.
models::OwnImagePrompt image_prompt_of(const std::string& path, const models::ModelShape& shape);

/// Returns the shape with the IP-adapter within it, at its scale. Errors: those of image_prompt_of().
models::ModelShape with_image_prompt(models::ModelShape shape, const AdapterChoice& choice);

/// Returns the encoder that a run with these keys of [adapter] trains with: `from` itself, or that of the IP-adapter
/// `from`. `seed`: training.seed. Errors ("adapter"): no `from`; those of image_encoder_of().
ImageEncoderSource trained_image_encoder(const LowRankKeys& keys, uint64_t seed);

/// Returns the IP-adapter that such a run trains: that of `from`, or a new one with four tokens for the embeddings of
/// the encoder `from`. Errors: those of image_prompt_of().
models::OwnImagePrompt trained_image_prompt(const LowRankKeys& keys, const models::ModelShape& shape);

/// Returns true if training continues from the IP-adapter at adapter.from, which is no encoder.
bool continues_image_prompt(const LowRankKeys& keys);

/// Returns the row of adapter.kind = kImagePromptKind: the IP-adapter within a model alone trains and is saved.
AdapterKind image_prompt_kind();

/// Moves the parameters of the IP-adapter from `tensors` into the result.
PartTensors take_image_prompt(const nn::Parameters& parameters, PartTensors& tensors);

/// Writes the IP-adapter at a path into `tensors`, as fill_part(). `shape` is that of the model with it.
/// Errors ("hugging face"): tensors that the file lacks or that no layer has, all listed.
void fill_image_prompt(const std::string& path, const models::ModelShape& shape, const nn::Parameters& parameters,
                       PartTensors tensors, comm::Mesh& mesh, bool uses_average = true,
                       const ModelSource* base = nullptr);

/// Writes the values with which a new IP-adapter starts into `tensors`, as copy_into_part(): keys and values of the
/// picture are those of the text.
void copy_into_image_prompt(const ModelSource& base, const nn::Parameters& parameters, const PartTensors& tensors,
                            comm::Mesh& mesh);

/// Writes the IP-adapter of a run as the file ip-adapter.safetensors in a folder, which diffusers' load_ip_adapter()
/// reads, with a config.json that names its sizes. The caller writes the folder image_encoder. `saved` is its base.
/// Collective among all ranks of `mesh`. Errors: those of fill_image_prompt() and checkpoint::export_weights().
void export_image_prompt(const std::string& to, const SavedModel& saved, const std::string& run, comm::Mesh& mesh,
                         bool uses_average = true);

}  // namespace colossal::run
