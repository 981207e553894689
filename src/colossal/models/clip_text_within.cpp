#include "colossal/models/clip_text_within.h"

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <utility>

#include "colossal/base/article.h"
#include "colossal/base/error.h"
#include "colossal/models/families/clip_text.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"

namespace colossal::models {
namespace {

constexpr char kEmbeddings[] = "text.";  // prefix of the encoder's embeddings in a denoiser

ModelShape with_encoder(ModelShape shape, OwnTextEncoder encoder) {
  shape.set(std::move(encoder));
  shape.architecture->settle(shape);
  shape.validate();
  return shape;
}

/// Returns the name that a parameter of a text encoder has in a denoiser. Numbers of blocks are the same in both.
std::string name_in_denoiser(const std::string& name, int64_t blocks) {
  if (name.starts_with("norm.")) return concat("blocks.", blocks - 1, ".", name);
  return block_of(name, blocks) ? name : kEmbeddings + name;
}

}  // namespace

ModelShape with_text_encoder(ModelShape denoiser, const ModelShape& text) {
  const int64_t wanted = denoiser.part<DenoiserSizes>().text;
  require(wanted > 0, "model", "a denoiser with its text encoder within it must read captions: got ",
          with_article(denoiser.architecture->name), ", which reads none");
  const bool is_clip = text.own.holds<ClipTextSizes>();
  require(is_clip && text.own.as<ClipTextSizes>().projection == 0, "model",
          "the text encoder within a denoiser must be a clip_text without a projection: got ",
          with_article(text.architecture->name), is_clip ? " with one" : "");
  require(text.hidden == wanted, "model", "the text encoder within a denoiser must have states of ", wanted,
          " features, which the denoiser reads: got ", text.hidden);
  return with_encoder(std::move(denoiser), {std::make_shared<const ModelShape>(text)});
}

ModelShape without_text_encoder(ModelShape shape) {
  return shape.part<OwnTextEncoder>().shape ? with_encoder(std::move(shape), {}) : shape;
}

int64_t text_encoder_blocks(const ModelShape& shape) {
  const auto text = shape.part<OwnTextEncoder>().shape;
  return text ? text->layers : 0;
}

Embed::OfOne add_text_encoder(const ModelShape& text, int state, Model& model, nn::Layers& layers) {
  // The norm behind the last block belongs to it.
  const ClipTextParts parts =
      make_clip_text(text, {kEmbeddings, 0, concat("blocks.", text.layers - 1, ".norm")}, layers);
  for (size_t i = 0; i < parts.blocks.size(); ++i) {
    const Block::OfOne norm = i + 1 == parts.blocks.size() ? parts.norm : nullptr;
    model.blocks.push_back(
        {{state}, {state}, [=, block = parts.blocks[i]](States& states, const nn::ForwardContext& step) {
           at::Tensor& x = states[state];
           x = block(x, step);
           if (norm) x = norm(x, step);
         }});
  }
  return [embed = parts.embed](const tensor::Batch& batch, const nn::ForwardContext& step) {
    const at::Tensor& ids = batch.at("ids");
    nn::ForwardContext counted = step;
    counted.positions = at::arange(ids.size(1), ids.options()).expand(ids.sizes()).contiguous();
    return embed(batch, counted);
  };
}

std::vector<nn::ExternalName> names_with_text_encoder(const ModelShape& shape,
                                                      std::vector<nn::ExternalName> of_denoiser) {
  const ModelShape& text = *shape.part<OwnTextEncoder>().shape;
  std::vector<nn::ExternalName> names = text.architecture->hugging_face.names(text);
  for (nn::ExternalName& name : names) {
    name.ours = name_in_denoiser(name.ours, text.layers);
    for (nn::ExternalRows& rows : name.parts) rows.name = kOfTextEncoder + rows.name;
  }
  for (nn::ExternalName& name : of_denoiser) {
    if (const auto block = block_of(name.ours, shape.layers))
      name.ours = concat("blocks.", *block + text.layers, name.ours.substr(concat("blocks.", *block).size()));
    names.push_back(std::move(name));
  }
  return names;
}

}  // namespace colossal::models
