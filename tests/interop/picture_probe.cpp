// Runs the models of picture pipelines from folders, for the script that compares them with diffusers.
//
// Usage: colossal_picture_probe FOLDER BATCH OUT DTYPE [ADAPTERS]
//   reads the folder of one part and BATCH, a safetensors file, and writes OUT, a safetensors file:
//     noised, times, and what else it reads -> predicted    (a denoiser)
//     pixels -> moments, latents -> decoded                 (an autoencoder, of pictures or of clips)
//     with `tiles` (of any value) too -> means, decoded     (the same in tiles)
//     ids -> states, and pooled                             (a text encoder)
//   DTYPE: float or double, of weights and results.
//     images -> embedding                                   (an encoder of pictures)
//   If BATCH has `control` or `image`, ADAPTERS is FOLDER[:SCALE] of a ControlNet or an IP-adapter, which the denoiser
//   gets.
//   With other ADAPTERS, a file of a pipeline, FOLDER is that pipeline, and it writes the gradients of the adapters of
//   both parts: noised, times, ids and weights -> loss, the sum of weights times what is predicted, and lora_A and
//   lora_B of each module.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/models/autoencoder.h"
#include "colossal/models/autoencoder_clips.h"
#include "colossal/models/autoencoder_tiles.h"
#include "colossal/models/clip_text_within.h"
#include "colossal/models/denoiser.h"
#include "colossal/models/image_encoder.h"
#include "colossal/models/registry.h"
#include "colossal/models/text_encoder.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/run/adapter_source.h"
#include "colossal/run/adapter_weights.h"
#include "colossal/run/low_rank_adapter.h"
#include "colossal/run/model_source.h"
#include "colossal/run/saved_model.h"
#include "colossal/tensor/batch.h"

namespace {

using namespace colossal;
using Tensors = std::map<std::string, at::Tensor>;

Tensors read(const std::string& path, at::ScalarType dtype) {
  const checkpoint::SafetensorsReader file(path);
  Tensors tensors;
  for (const auto& [name, entry] : file.entries()) {
    const at::Tensor x = file.tensor(name).clone();
    tensors[name] = x.is_floating_point() ? x.to(dtype) : x;
  }
  return tensors;
}

void write(const std::string& path, const Tensors& tensors) {
  std::vector<checkpoint::TensorEntry> entries;
  for (const auto& [name, x] : tensors) entries.push_back({name, x.scalar_type(), x.sizes().vec()});
  checkpoint::sort_entries(entries);
  checkpoint::SafetensorsWriter writer(path, entries);
  for (const checkpoint::TensorEntry& entry : entries) writer.write(tensors.at(entry.name).contiguous());
  writer.finish();
}

at::Tensor predicted(distributed::DistributedModel& model, const Tensors& given) {
  using tensor::Dim;
  const std::map<std::string, std::vector<Dim>> fields{{"noised", {Dim::Row, Dim::Other, Dim::Other, Dim::Other}},
                                                       {"times", {Dim::Row}},
                                                       {"classes", {Dim::Row}},
                                                       {"guidance", {Dim::Row}},
                                                       {"text", {Dim::Row, Dim::Other, Dim::Feature}},
                                                       {"control", {Dim::Row, Dim::Other, Dim::Other, Dim::Other}},
                                                       {"image", {Dim::Row, Dim::Other}},
                                                       {"pooled", {Dim::Row, Dim::Other}}};
  tensor::Batch batch;
  for (const auto& [name, x] : given) batch.add(name, {x, fields.at(name)});
  const models::ModelShape& shape = model.model().shape;
  const auto results =
      model.forward({nn::step_of(batch)}, [&](int, const models::States& end, const nn::ForwardContext&) {
        return models::predicted_picture(shape, end.at(0), batch);
      });
  return results.at(0);
}

Tensors results_of(distributed::DistributedModel& model, const Tensors& given) {
  if (given.contains("noised")) return {{"predicted", predicted(model, given)}};
  const models::Model& own = model.decoding_model();
  if (given.contains("images")) return {{"embedding", models::image_embedding(own, given.at("images"))}};
  if (given.contains("ids")) {
    const at::Tensor& ids = given.at("ids");
    return {{"states", models::text_states(own, ids)}, {"pooled", models::pooled_state(own, ids)}};
  }
  if (given.contains("tiles")) {
    const nn::Parameters& parameters = model.parameters();
    return {{"means", models::moments_in_tiles(own, parameters, given.at("pixels")).chunk(2, 1)[0]},
            {"decoded", models::decoded_in_tiles(own, parameters, given.at("latents"))}};
  }
  if (given.at("pixels").dim() == 5)
    return {{"moments", models::moments_of_clips(own, given.at("pixels"))},
            {"decoded", models::decoded_clips(own, given.at("latents"))}};
  return {{"moments", models::moments_of(own, given.at("pixels"))},
          {"decoded", models::decoded(own, given.at("latents"))}};
}

/// Returns the gradients of the adapters of a denoiser with its text encoder within it.
Tensors gradients_of(const std::string& folder, const std::string& adapters, const Tensors& given, at::ScalarType dtype,
                     comm::Mesh& mesh) {
  using tensor::Dim;
  const models::Registry& registry = models::built_in();
  const auto shape_in = [&](const char* part) { return registry.shape_of(checkpoint::read_config(folder + part)); };
  const models::ModelShape shape = models::with_text_encoder(shape_in("/unet"), shape_in("/text_encoder"));
  const run::AdapterSource source = run::open_adapters(adapters);
  const nn::Adapter adapter = run::low_rank_adapter(run::keys_of(source, shape), shape);
  nn::Parameters parameters({}, {.dtype = dtype, .treatment = adapter.treatment, .products = {adapter.product}});
  nn::SerialLayers layers(parameters);
  const models::Model model = models::make_model(shape, layers);
  std::vector<checkpoint::NamedTensor> tensors;
  for (const nn::Parameter& p : parameters) tensors.push_back({p.name, p.value.detach(), p.spec});
  run::read_source({.path = folder, .shape = shape}, parameters, tensors, mesh, "");
  const run::AdapterWeights weights = run::read_adapters(source, shape, mesh);
  run::fill_adapters(weights, shape, parameters, tensors, mesh);
  tensor::Batch batch;
  batch.add("noised", {given.at("noised"), {Dim::Row, Dim::Other, Dim::Other, Dim::Other}});
  batch.add("times", {given.at("times"), {Dim::Row}});
  batch.add("ids", {given.at("ids"), {Dim::Row, Dim::Other}});
  const nn::ForwardContext step = nn::step_of(batch);
  const at::AutoGradMode with_gradients(true);
  const models::States end = models::run_stage(model, {0, static_cast<int64_t>(model.blocks.size())}, {}, step);
  const at::Tensor loss = (models::predicted_picture(shape, end.at(0), *step.batch) * given.at("weights")).sum();
  loss.backward();
  Tensors results{{"loss", loss.detach()}};
  for (const run::AdapterLayer& layer : weights.layers) {
    const auto gradient = [&](char matrix) {
      return parameters.at(run::matrix_name(layer.module, matrix)).value.grad();
    };
    results[layer.module.name + ".lora_A"] = gradient('a');
    results[layer.module.name + ".lora_B"] = layer.module.theirs(gradient('b'));
  }
  return results;
}

}  // namespace

int main(int count, char** words) {
  if (count != 5 && count != 6)
    return std::fprintf(stderr, "usage: colossal_picture_probe FOLDER BATCH OUT DTYPE [ADAPTERS]\n"), 2;
  try {
    const at::ScalarType dtype = words[4] == std::string("double") ? at::kDouble : at::kFloat;
    comm::run_ranks(1, [&](comm::World& world) {
      const at::NoGradGuard no_grad;
      comm::Mesh mesh(world, {});
      const Tensors given = read(words[2], dtype);
      const bool has_control = given.contains("control"), has_image = given.contains("image");
      if (count == 6 && !has_control && !has_image)
        return write(words[3], gradients_of(words[1], words[5], given, dtype, mesh));
      run::Loading loading{.tokenizer = "none", .dtype = dtype};
      if (has_control) loading.control = run::parse_adapter(words[5]);
      if (has_image) loading.image_prompt = run::parse_adapter(words[5]);
      const run::SavedModel saved = run::load_model(words[1], mesh, {}, at::kCPU, loading);
      write(words[3], results_of(*saved.model, given));
    });
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
  return 0;
}
