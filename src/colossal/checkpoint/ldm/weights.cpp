#include "colossal/checkpoint/ldm/weights.h"

#include <ATen/ATen.h>

#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/base/pipeline_parts.h"

namespace colossal::checkpoint {
namespace {

constexpr char kLdm[] = "ldm", kPositions[] = "text_model.embeddings.position_embedding.weight",
               kProjection[] = "text_projection.weight";

std::vector<std::string> names_in(const SafetensorsReader& file) {
  std::vector<std::string> names;
  for (const auto& [name, entry] : file.entries()) names.push_back(name);
  return names;
}

/// Returns true for the matrices of the VAE's attention, which are convolutions in the file.
bool is_matrix_of_vae(const LdmPlace& place) {
  return place.part == kVaePart && place.name.find(".attentions.") != std::string::npos &&
         place.name.ends_with(".weight") && place.name.find("group_norm") == std::string::npos;
}

}  // namespace

LdmWeights::LdmWeights(const std::string& path, const std::string& part) : file_(path) {
  const LdmSizes sizes = ldm_sizes(names_in(file_));
  for (const auto& [name, entry] : file_.entries())
    for (const LdmPlace& place : ldm_places(name, sizes)) {
      if (place.part != part) continue;
      Stored one{name, place.rows, {place.name, entry.dtype, entry.shape, 0, entry.end - entry.begin}};
      if (is_matrix_of_vae(place) && one.entry.shape.size() > 2) one.entry.shape.resize(2);
      const LdmRows& rows = place.rows;
      if (rows.transposed) {
        require(entry.shape.size() == 2, kLdm, path, ": ", printable(name), " must be a matrix: got ",
                entry.shape.size(), " dimensions");
        std::swap(one.entry.shape[0], one.entry.shape[1]);
      } else if (rows != LdmRows{}) {
        const int64_t parts = rows.swapped ? 2 : rows.of;
        require(!entry.shape.empty() && entry.shape[0] % parts == 0, kLdm, path, ": ", printable(name), " must have ",
                parts, " parts of equal numbers of rows: got ", entry.shape.empty() ? 0 : entry.shape[0], " rows");
        one.entry.shape[0] = entry.shape[0] / rows.of * rows.count;
        one.entry.end = one.entry.end / rows.of * rows.count;
      }
      const auto [found, is_new] = stored_.emplace(place.name, std::move(one));
      require(is_new, kLdm, path, ": ", printable(name), " and ", printable(found->second.name), " are both ",
              place.name, " of the ", part, "; remove one");
    }
  require(!stored_.empty(), kLdm, path, " must have the tensors of the ", part,
          ": got none; name a folder or file that has that part");
  const auto table = stored_.find(kPositions);
  if (sizes.joint_blocks > 0 && part == kTextEncoderPart && table != stored_.end()) {
    const TensorEntry& like = table->second.entry;
    const int64_t features = like.shape.back();
    const auto bytes =
        static_cast<uint64_t>(features) * ((like.end - like.begin) / static_cast<uint64_t>(like.shape.front()));
    stored_[kProjection] = {.entry = {kProjection, like.dtype, {features, features}, 0, bytes}};
  }
  for (const auto& [name, one] : stored_) entries_[name] = &one.entry;
}

void LdmWeights::leave(const std::string& name) const {
  const std::string& there = stored_.at(name).name;
  if (!there.empty()) file_.leave(there);
}

bool LdmWeights::can_wait(const std::string& name) const {
  const std::string& there = stored_.at(name).name;
  return there.empty() || file_.is_in_memory(there);
}

at::Tensor LdmWeights::tensor(const std::string& name) const {
  const Stored& one = stored_.at(name);
  if (one.name.empty()) return at::eye(one.entry.shape[0], file_.tensor(stored_.at(kPositions).name).options());
  const at::Tensor whole = file_.tensor(one.name);
  if (one.rows == LdmRows{}) return whole.view(one.entry.shape);
  if (one.rows.transposed) return whole.t().contiguous();
  if (one.rows.swapped) return whole.roll(whole.size(0) / 2, 0);
  return whole.narrow(0, whole.size(0) / one.rows.of * one.rows.first, one.entry.shape[0]);
}

}  // namespace colossal::checkpoint
