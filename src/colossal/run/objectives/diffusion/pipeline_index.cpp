#include "colossal/run/objectives/diffusion/pipeline_index.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/join.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/json_file.h"
#include "colossal/base/pipeline_parts.h"
#include "colossal/models/caption_parts.h"

namespace colossal::run {
namespace {

constexpr char kPipelineIndex[] = "colossal_pipeline.json", kTokenizerPart[] = "tokenizer";
constexpr int64_t kMostCells = 1 << 20;

std::string index_path(const std::string& folder) { return concat(folder, "/", kPipelineIndex); }

/// Returns the names that parts may have.
std::vector<std::string> part_names() {
  constexpr size_t kMostEncoders = 4;
  std::vector<std::string> names{kVaePart};
  for (size_t i = 0; i < kMostEncoders; ++i)
    for (const char* stem : {kTextEncoderPart, kTokenizerPart}) names.push_back(models::caption_part_name(stem, i));
  return names;
}

}  // namespace

void PipelineIndex::fields(Fields& f) {
  f.integer("frames", frames, "frames", "frames of the clips, as the model draws them", 1, kMostCells);
  f.integer("height", height, "cells", "height of the frames", 1, kMostCells);
  f.integer("width", width, "cells", "width of the frames", 1, kMostCells);
  f.integer("seed", seed, "", "seed of the weights of presets that replace parts");
  f.texts("parts", parts, "folders of the parts");
  f.section("diffusion", diffusion, "keys of [diffusion]");
}

bool PipelineIndex::has(const std::string& part) const {
  return std::find(parts.begin(), parts.end(), part) != parts.end();
}

bool has_pipeline_index(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(index_path(path), ignored);
}

PipelineIndex read_pipeline_index(const std::string& folder) {
  const std::string file = index_path(folder);
  PipelineIndex index;
  try {
    index = read_stored<PipelineIndex>(read_json_object(file, "pipeline"), "pipeline");
  } catch (const Error& error) {
    if (error.message().find(file) != std::string::npos) throw;
    throw Error("pipeline", concat(file, ": ", error.message()));
  }
  const std::vector<std::string> names = part_names();
  for (const std::string& part : index.parts) {
    require(std::find(names.begin(), names.end(), part) != names.end(), "pipeline", file, ": parts must be some of ",
            join(names), ": got ", printable(part));
    std::error_code ignored;
    require(std::filesystem::is_directory(concat(folder, "/", part), ignored), "pipeline", folder,
            " must have the folder ", part, ", because its ", kPipelineIndex,
            " names that part: got none; copy the export completely");
  }
  return index;
}

void write_pipeline_index(const std::string& folder, const PipelineSource& source) {
  PipelineIndex index{.frames = source.sizes.frames,
                      .height = source.sizes.height,
                      .width = source.sizes.width,
                      .seed = static_cast<int64_t>(source.seed),
                      .diffusion = source.keys};
  if (source.has_latents()) index.parts.emplace_back(kVaePart);
  for (size_t i = 0; i < source.captions.size(); ++i) {
    index.parts.push_back(models::caption_part_name(kTextEncoderPart, i));
    if (source.captions[i].tokenizer != "bytes") index.parts.push_back(models::caption_part_name(kTokenizerPart, i));
  }
  write_file(index_path(folder), to_json_object(index).dump(2) + "\n");
}

}  // namespace colossal::run
