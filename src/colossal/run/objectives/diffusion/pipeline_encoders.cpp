#include "colossal/run/objectives/diffusion/pipeline_encoders.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "colossal/base/article.h"
#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/base/pipeline_parts.h"
#include "colossal/models/caption_parts.h"
#include "colossal/models/registry.h"
#include "colossal/models/text_encoder.h"
#include "colossal/run/model_source.h"
#include "colossal/run/objectives/diffusion/pipeline_index.h"
#include "colossal/run/program.h"
#include "colossal/text/tokenizer.h"

namespace colossal::run {
namespace {

/// Returns the tokenizer of the i-th text encoder: in its folder, or beside it as in a pipeline.
std::string tokenizer_of_encoder(const std::string& encoder, const ModelSource& source, size_t i) {
  if (source.is_preset) return "bytes";
  if (text::has_tokenizer(encoder)) return encoder;
  const std::filesystem::path path = std::filesystem::path(encoder).lexically_normal(),
                              folder = path.has_filename() ? path : path.parent_path();
  const std::string own = folder.filename(), stem = kTextEncoderPart,
                    beside = own.starts_with(stem) ? concat("tokenizer", own.substr(stem.size())) : "tokenizer",
                    of_place = models::caption_part_name("tokenizer", i);
  for (const std::filesystem::path& inside : {folder.parent_path(), folder})
    for (const std::string& name : {beside, of_place})
      if (const std::string found = (inside / name).string(); text::has_tokenizer(found)) return found;
  throw Error("text encoder", concat(encoder, " must have its tokenizer in it, or in the folder ",
                                     (folder.parent_path() / beside).string(), ": got none; copy it there"));
}

/// Reads zeros in place of the states of Stable Diffusion 3's T5, if there is none.
void leave_out_last(PipelineSource& source) {
  models::DenoiserSizes& sizes = source.sizes;
  if (sizes.captions.empty() || !sizes.captions.back().is_after || !source.captions.back().encoder.empty()) return;
  sizes.zero_tokens = static_cast<int32_t>(sizes.captions.back().tokens);
  sizes.captions.pop_back();
  source.captions.pop_back();
}

/// A text encoder that a user names, and the part that it replaces; empty = that of its kind.
struct NamedEncoder {
  std::string part{}, from{};
};

/// Reads OtherParts::text_encoder.
std::vector<NamedEncoder> named_encoders(const std::string& text) {
  const std::string stem = kTextEncoderPart;
  std::error_code ignored;
  if (!text.starts_with(stem) || text.find('=') == std::string::npos || std::filesystem::exists(text, ignored))
    return {{.from = text}};
  std::vector<NamedEncoder> named;
  for (size_t begin = 0; begin < text.size();) {
    const size_t next = std::min(text.find("," + stem, begin), text.size()), sign = text.find('=', begin);
    require(sign < next, "text encoder", "from must have the form text_encoder_2=FOLDER: got ",
            printable(text.substr(begin, next - begin)));
    named.push_back({text.substr(begin, sign - begin), text.substr(sign + 1, next - sign - 1)});
    begin = next + 1;
  }
  return named;
}

/// Returns the place of an encoder of CLIP or T5: the only one of that kind, or else the only one that is missing.
size_t place_of(const PipelineSource& source, const std::string& from, bool is_clip) {
  const std::vector<models::CaptionPart>& parts = source.sizes.captions;
  if (parts.size() == 1) return 0;
  std::vector<size_t> places, missing;
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool reads_clip = parts[i].pooled || parts[i].states == models::CaptionStates::Hidden;
    if (reads_clip != is_clip) continue;
    places.push_back(i);
    if (source.captions[i].encoder.empty()) missing.push_back(i);
  }
  if (places.size() > 1 && missing.size() == 1) return missing.front();
  require(places.size() == 1, "text encoder", "from must say which one it replaces for a model that reads ",
          parts.size(), " text encoders: got ", from, "; write text_encoder=", from,
          " or text_encoder_2=, or name a pipeline that has them all");
  return places.front();
}

/// Returns what a user can do about a model that is no text encoder.
std::string advice_on_encoder(const ModelSource& found) {
  if (found.shape.architecture->name != "t5") return "";
  return found.is_preset ? "; name a preset of its encoder alone, such as t5-encoder-tiny"
                         : "; its encoder alone is read with \"architectures\": [\"T5EncoderModel\"] in config.json";
}

/// Sets one text encoder, with its tokenizer.
void set_text_encoder(PipelineSource& source, const NamedEncoder& named) {
  const ModelSource found = find_source(named.from, built_in());
  const auto sizes = found.shape.part<models::TextEncoderSizes>();
  require(sizes.features > 0, "text encoder", "from must be a text encoder, of the class CLIPTextModel, ",
          "CLIPTextModelWithProjection or T5EncoderModel: got ", named.from, ", ",
          with_article(found.shape.architecture->name), ", which ", found.shape.task().purpose(),
          advice_on_encoder(found));
  size_t place = source.captions.size();
  std::string names;
  for (size_t i = 0; i < source.captions.size(); ++i) {
    const std::string name = models::caption_part_name(kTextEncoderPart, i);
    names += concat(i == 0 ? "" : ", ", name);
    if (name == named.part) place = i;
  }
  require(named.part.empty() || place < source.captions.size(), "text encoder", "from must name one of ", names,
          ": got ", printable(named.part), "=", named.from);
  if (named.part.empty()) place = place_of(source, named.from, sizes.begins);
  source.captions[place] = {named.from, tokenizer_of_encoder(named.from, found, place)};
}

}  // namespace

void take_encoders(PipelineSource& source, const PipelineFolder& folder, bool may_lack) {
  const models::DenoiserSizes& sizes = source.sizes;
  source.captions.assign(sizes.captions.size(), {});
  for (size_t i = 0; i < sizes.captions.size(); ++i) {
    const std::string encoder = models::caption_part_name(kTextEncoderPart, i),
                      tokenizer = models::caption_part_name("tokenizer", i);
    const bool is_last = sizes.captions[i].is_after && i + 1 == sizes.captions.size();
    if (may_lack && !(folder.find(encoder) && folder.find(tokenizer))) continue;
    if (is_last && !folder.find(encoder)) break;
    source.captions[i] = {folder.at(encoder).folder, folder.at(tokenizer).folder};
  }
  if (!may_lack) leave_out_last(source);
}

std::vector<CaptionSource> captions_of_index(const std::string& path, const models::DenoiserSizes& sizes) {
  const PipelineIndex index = read_pipeline_index(path);
  std::vector<CaptionSource> captions;
  for (size_t i = 0; i < sizes.captions.size(); ++i) {
    const std::string encoder = models::caption_part_name(kTextEncoderPart, i),
                      tokenizer = models::caption_part_name("tokenizer", i);
    require(index.has(encoder), "text encoder", path, " must have the part ", encoder, " for this model: got none");
    captions.push_back({concat(path, "/", encoder), index.has(tokenizer) ? concat(path, "/", tokenizer) : "bytes"});
  }
  return captions;
}

void set_text_encoders(PipelineSource& source, const std::string& from) {
  require(source.reads_text(), "text encoder", "from = ", from,
          " needs a model that reads captions: got one of classes");
  if (models::DenoiserSizes& sizes = source.sizes; sizes.zero_tokens > 0) {  // the encoder that the folder lacks
    sizes.captions.push_back({.tokens = std::exchange(sizes.zero_tokens, 0), .is_after = true});
    source.captions.emplace_back();
  }
  if (has_pipeline_index(from)) {
    source.captions = captions_of_index(from, source.sizes);
    return;
  }
  if (has_pipeline(from)) return take_encoders(source, read_pipeline(from, {kVaePart}));
  for (const NamedEncoder& named : named_encoders(from)) set_text_encoder(source, named);
  leave_out_last(source);
}

void check_found_encoders(const PipelineSource& source) {
  std::vector<models::TextEncoderSizes> encoders;
  for (const CaptionSource& one : source.captions)
    encoders.push_back(models::text_encoder_of(find_source(one.encoder, built_in()).shape));
  check_encoders(source, encoders);
}

void require_encoders(const PipelineSource& source) {
  const auto has_no_name = [](const CaptionSource& one) { return one.encoder.empty(); };
  require(!source.reads_text() ||
              (!source.captions.empty() && std::none_of(source.captions.begin(), source.captions.end(), has_no_name)),
          "model",
          "text must be the features of a text encoder, 64 (clip-text-tiny), 768 (clip-l) or 1024 (open-clip-h): got ",
          source.sizes.text, "; set model.text, text_encoder.from, or model.from to a pipeline that has its encoder");
  const int64_t states = models::caption_states_of(source.sizes);
  require(!source.reads_text() || states == source.sizes.text_tokens, "model", "text_tokens must be at least ", states,
          ", the tokens of its text encoders: got ", source.sizes.text_tokens, "; set model.text_tokens");
}

}  // namespace colossal::run
