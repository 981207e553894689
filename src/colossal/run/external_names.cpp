#include "colossal/run/external_names.h"

#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/base/pipeline_parts.h"
#include "colossal/models/clip_text_within.h"
#include "colossal/models/decoder.h"
#include "colossal/models/folder_names.h"
#include "colossal/models/shape_parts.h"

namespace colossal::run {
namespace {

std::vector<models::IgnoredTensor> parts_left_out(const models::ModelShape& shape) {
  const auto left_out = shape.architecture->hugging_face.left_out;
  return left_out ? left_out(shape) : std::vector<models::IgnoredTensor>();
}

/// Returns the names in a folder of diffusers.
checkpoint::ExternalNames diffusers_names(const models::ModelShape& shape, std::vector<std::string> may_lack) {
  const models::Diffusers& folder = shape.architecture->diffusers;
  std::vector<std::string> ignored = folder.ignored_names();
  std::vector<checkpoint::PartBeside> beside;
  const auto texts = shape.part<models::OwnTextEncoder>();
  for (const auto& text : {texts.shape, texts.second}) {
    if (!text) continue;
    const models::HuggingFace& of_text = text->architecture->hugging_face;
    const std::string part = text == texts.shape ? kTextEncoderPart : kSecondTextEncoderPart;
    beside.push_back({part, of_text.prefix});
    for (const std::string& name : of_text.ignored_names()) ignored.push_back(concat(part, ".", name));
  }
  if (texts.second)  // the last block of the first is not read
    for (const std::string& name :
         {concat("encoder.layers.", texts.shape->layers, ".*"), std::string("final_layer_norm.*")})
      for (const char* word : {"text_model.", ""}) ignored.push_back(concat(models::kOfTextEncoder, word, name));
  return {.names = folder.names(shape),
          .ignored = std::move(ignored),
          .may_lack = std::move(may_lack),
          .old_endings = folder.old_endings,
          .copies = folder.copies ? folder.copies(shape) : std::vector<nn::ExternalCopy>(),
          .beside = std::move(beside),
          .stem = "diffusion_pytorch_model",
          .writes_copies = true};
}

}  // namespace

checkpoint::ExternalNames external_names(const models::ModelShape& shape, std::vector<std::string> may_lack) {
  const models::HuggingFace& folder = shape.architecture->hugging_face;
  if (!folder.names && shape.architecture->diffusers.names) return diffusers_names(shape, std::move(may_lack));
  std::vector<std::string> ignored = folder.ignored_names();
  for (models::IgnoredTensor& part : parts_left_out(shape)) ignored.push_back(std::move(part.name));
  may_lack.insert(may_lack.end(), folder.may_lack.begin(), folder.may_lack.end());
  if (shape.outputs() > 0 && !folder.head.empty()) {  // that of the model from which a reward model starts
    const std::string layer = folder.head.substr(0, folder.head.rfind('.'));
    for (const char* part : {".weight", ".bias"}) ignored.push_back(layer + part);
  }
  return {folder.names(shape), folder.prefix,      std::move(ignored),
          std::move(may_lack), folder.old_endings, models::copies_in_folder(shape)};
}

std::vector<std::string> head_that_may_lack(const models::ModelShape& shape) {
  if (shape.outputs() > 0) return {concat(models::kScoreHead, ".*")};
  if (!shape.architecture->hugging_face.own_head.empty()) return {"head.*"};
  return {};
}

std::optional<std::string> notice_of_left_out(const std::string& folder, const models::ModelShape& shape) {
  for (const models::IgnoredTensor& part : parts_left_out(shape))
    if (const std::optional<std::string> name = checkpoint::find_tensor(folder, part.name))
      return concat(folder, " holds ", printable(*name), ", which is left out: it belongs to ", part.reason);
  return {};
}

std::optional<std::string> drop_missing_layers(const std::string& folder, nlohmann::json& config,
                                               const models::Registry& registry) {
  const models::ModelShape shape = registry.shape_of(config);
  const models::HuggingFace& form = shape.architecture->hugging_face;
  if (form.multi_token_key.empty()) return {};
  for (int64_t layer = 0; layer < shape.part<models::MultiTokenSizes>().layers; ++layer) {
    if (checkpoint::find_tensor(folder, form.multi_token_tensor(shape, layer))) continue;
    config[form.multi_token_key] = 0;
    return concat(folder, " holds no weights of multi-token layer ", layer, ", although ", form.multi_token_key,
                  " of its config.json is ", shape.part<models::MultiTokenSizes>().layers,
                  ": these layers are left out, so --draft-tokens looks draft tokens up in earlier text; use a folder "
                  "with the weights to draft with the layers");
  }
  return {};
}

}  // namespace colossal::run
