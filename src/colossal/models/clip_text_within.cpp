#include "colossal/models/clip_text_within.h"

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <utility>

#include "colossal/base/article.h"
#include "colossal/base/error.h"
#include "colossal/models/families/clip_text.h"
#include "colossal/models/registry.h"
#include "colossal/models/text_encoder.h"
#include "colossal/models/transformer_block.h"
#include "colossal/nn/features.h"
#include "colossal/nn/linear_layers.h"

namespace colossal::models {
namespace {

// prefixes of the embeddings of encoders in a denoiser
constexpr char kEmbeddings[] = "text.", kSecondEmbeddings[] = "text_2.";

ModelShape with_encoder(ModelShape shape, OwnTextEncoder encoder) {
  shape.set(std::move(encoder));
  shape.architecture->settle(shape);
  shape.validate();
  return shape;
}

/// The place of an encoder in a denoiser: the number of its first block, that of its last one, and the prefix of its
/// embeddings.
struct WithinPlace {
  int64_t first = 0, last = 0;
  const char* embeddings = kEmbeddings;
};

/// Returns the name that a parameter of a text encoder has in a denoiser.
std::string name_in_denoiser(const std::string& name, int64_t blocks, const WithinPlace& place) {
  const std::string head = "head.";
  if (name.starts_with("norm.")) return concat("blocks.", place.last, ".", name);
  if (name.starts_with(head)) return concat("blocks.", place.last, ".", name.substr(head.size()));
  const auto block = block_of(name, blocks);
  if (!block) return place.embeddings + name;
  return concat("blocks.", *block + place.first, name.substr(concat("blocks.", *block).size()));
}

/// Makes what embeds the ids of an encoder, with their positions.
Embed::OfOne with_positions(const Embed::OfOne& embed, const std::string& field) {
  return [=](const tensor::Batch& batch, const nn::ForwardContext& step) {
    const at::Tensor& ids = batch.at(field);
    nn::ForwardContext counted = step;
    counted.positions = at::arange(ids.size(1), ids.options()).expand(ids.sizes()).contiguous();
    return embed(batch, counted);
  };
}

void require_clip(const ModelShape& text, bool is_projected) {
  const bool is_clip = text.own.holds<ClipTextSizes>();
  require(is_clip && (text.own.as<ClipTextSizes>().projection > 0) == is_projected, "model",
          "the text encoder within a denoiser must be a clip_text ", is_projected ? "with" : "without",
          " a projection: got ", with_article(text.architecture->name), is_clip ? " of the other kind" : "");
}

/// Adds a block for each of an encoder, which passes on one state. The last one also applies the norm, if there is one.
void add_text_blocks(const ClipTextParts& parts, size_t count, int state, Model& model) {
  for (size_t i = 0; i < count; ++i) {
    const Block::OfOne norm = i + 1 == parts.blocks.size() ? parts.norm : nullptr;
    model.blocks.push_back(
        {{state}, {state}, [=, block = parts.blocks[i]](States& states, const nn::ForwardContext& step) {
           at::Tensor& x = states[state];
           x = block(x, step);
           if (norm) x = norm(x, step);
         }});
  }
}

/// What the last block of two encoders computes from its input, the states that the denoiser reads of the second.
struct JoinedTexts {
  States states;  // the pooled text [B, features], and a factor [B, 1] that is 0 for an empty caption, or undefined

  JoinedTexts(const at::Tensor& last, const at::Tensor& ids, int64_t end_id, int64_t vocabulary, bool zeros_for_empty) {
    const at::Tensor places = pooled_places(ids, end_id);
    states = {last.gather(1, places.view({-1, 1, 1}).expand({-1, 1, last.size(2)})).squeeze(1), {}};
    if (!zeros_for_empty) return;
    // Of an empty caption the end token follows the begin token. A learned word, whose id may be taken for that of the
    // end token, is none.
    const at::Tensor ends = pooled_places(ids * ids.lt(vocabulary), end_id);
    states[1] = ends.gt(1).to(last.scalar_type()).view({-1, 1});
  }
};

}  // namespace

ModelShape with_text_encoder(ModelShape denoiser, const ModelShape& text) {
  const int64_t wanted = denoiser.part<DenoiserSizes>().text;
  require(wanted > 0, "model", "a denoiser with its text encoder within it must read captions: got ",
          with_article(denoiser.architecture->name), ", which reads none");
  require_clip(text, /*is_projected=*/false);
  require(text.hidden == wanted, "model", "the text encoder within a denoiser must have states of ", wanted,
          " features, which the denoiser reads: got ", text.hidden);
  return with_encoder(std::move(denoiser), {std::make_shared<const ModelShape>(text)});
}

ModelShape with_text_encoders(ModelShape denoiser, ModelShape first, const ModelShape& second, bool zeros_for_empty) {
  const auto sizes = denoiser.part<DenoiserSizes>();
  require(sizes.captions.size() == 2 && sizes.pooled > 0, "model",
          "a denoiser with two text encoders within it must read those of SDXL: got ",
          with_article(denoiser.architecture->name), ", which reads ", sizes.captions.size());
  require_clip(first, /*is_projected=*/false);
  require_clip(second, /*is_projected=*/true);
  const int64_t pooled = second.own.as<ClipTextSizes>().projection;
  require(first.hidden + second.hidden == sizes.text && pooled == sizes.pooled, "model",
          "the text encoders within a denoiser must have states of ", sizes.text, " features and ", sizes.pooled,
          " pooled ones, which the denoiser reads: got ", first.hidden, " + ", second.hidden, " and ", pooled);
  require(first.layers > 1 && second.layers > 1, "model",
          "the text encoders within a denoiser must have 2 blocks or more, because the last one is not read: got ",
          first.layers, " and ", second.layers);
  --first.layers;
  return with_encoder(std::move(denoiser), {std::make_shared<const ModelShape>(std::move(first)),
                                            std::make_shared<const ModelShape>(second), zeros_for_empty});
}

int64_t text_encoder_of_name(const std::string& name) {
  return name.starts_with(kOfTextEncoder) ? 0 : name.starts_with(kOfSecondTextEncoder) ? 1 : -1;
}

std::string names_of_text_encoder(int64_t encoder) { return encoder == 1 ? kOfSecondTextEncoder : kOfTextEncoder; }

ModelShape without_text_encoder(ModelShape shape) {
  return shape.part<OwnTextEncoder>().shape ? with_encoder(std::move(shape), {}) : shape;
}

int64_t text_encoder_blocks(const ModelShape& shape) {
  const auto texts = shape.part<OwnTextEncoder>();
  return (texts.shape ? texts.shape->layers : 0) + (texts.second ? texts.second->layers : 0);
}

Embed::OfOne add_text_encoder(const ModelShape& text, int state, Model& model, nn::Layers& layers) {
  // The norm behind the last block belongs to it.
  const ClipTextParts parts =
      make_clip_text(text, {kEmbeddings, 0, concat("blocks.", text.layers - 1, ".norm")}, layers);
  add_text_blocks(parts, parts.blocks.size(), state, model);
  return with_positions(parts.embed, "ids");
}

EmbeddedTexts add_text_encoders(const OwnTextEncoder& texts, const TextStates& places, Model& model, nn::Layers& layers,
                                const std::function<PooledText(int64_t block)>& of_pooled) {
  const ModelShape &first = *texts.shape, &second = *texts.second;
  require(!layers.features(second.hidden, nn::Place::Outside)->is_split(), "parallel",
          "a denoiser with two text encoders within it must have whole hidden states on each rank: got a layout that "
          "splits features; set parallel.tensor.mode = \"1d\"");
  const std::string ids = "ids_2", last = concat("blocks.", first.layers + second.layers - 1, ".");
  const ClipTextPlace of_first{.outside = kEmbeddings, .norm = ""},
      of_second{kSecondEmbeddings, first.layers, last + "norm", ids};
  const EmbeddedTexts embedded{with_positions(make_clip_text_embedding(first, of_first, layers), "ids"),
                               with_positions(make_clip_text_embedding(second, of_second, layers), ids)};
  const ClipTextParts begin = make_clip_text_blocks(first, of_first, layers),
                      parts = make_clip_text_blocks(second, of_second, layers);
  add_text_blocks(begin, begin.blocks.size(), places.text, model);
  add_text_blocks(parts, parts.blocks.size() - 1, places.second, model);
  const auto own = second.own.as<ClipTextSizes>();
  const std::shared_ptr<nn::Dense> projection =
      layers.dense(last + "projection", second.hidden, own.projection, {.bias = false, .deviation = kDeviation});
  const auto join = [=, words = second.vocabulary, block = parts.blocks.back(), part = layers.field_part(),
                     zeros = texts.zeros_for_empty, pooled = of_pooled(first.layers + second.layers - 1)](
                        States& states, const nn::ForwardContext& step) {
    const at::Tensor hidden = states[places.second], end = parts.norm(block(hidden, step), step);
    const JoinedTexts joined(end, part(step.batch->field(ids), step), own.end_id, words, zeros);
    at::Tensor text = at::cat({states[places.text], hidden}, 2), whole = projection->forward(joined.states[0]);
    if (const at::Tensor& factor = joined.states[1]; factor.defined())
      text = text * factor.unsqueeze(2), whole = whole * factor;
    states[places.text] = text;
    states[places.condition] = states[places.condition] + pooled(whole, step);
  };
  model.blocks.push_back({{places.text, places.second, places.condition}, {places.text, places.condition}, join});
  return embedded;
}

std::vector<nn::ExternalName> names_with_text_encoder(const ModelShape& shape,
                                                      std::vector<nn::ExternalName> of_denoiser) {
  const auto texts = shape.part<OwnTextEncoder>();
  const int64_t first = texts.shape->layers, blocks = text_encoder_blocks(shape);
  std::vector<nn::ExternalName> names;
  const auto add = [&](const ModelShape& text, const WithinPlace& place, const std::string& prefix) {
    for (nn::ExternalName name : text.architecture->hugging_face.names(text)) {
      if (texts.second && place.first == 0 && name.ours.starts_with("norm.")) continue;  // nothing reads it
      name.ours = name_in_denoiser(name.ours, text.layers, place);
      for (nn::ExternalRows& rows : name.parts) rows.name = prefix + rows.name;
      names.push_back(std::move(name));
    }
  };
  add(*texts.shape, {0, first - 1}, kOfTextEncoder);
  if (texts.second) add(*texts.second, {first, blocks - 1, kSecondEmbeddings}, kOfSecondTextEncoder);
  for (nn::ExternalName& name : of_denoiser) {
    if (const auto block = block_of(name.ours, shape.layers))
      name.ours = concat("blocks.", *block + blocks, name.ours.substr(concat("blocks.", *block).size()));
    else if (texts.second && name.ours.starts_with("more."))
      name.ours = concat("blocks.", blocks - 1, ".", name.ours);
    names.push_back(std::move(name));
  }
  return names;
}

}  // namespace colossal::models
