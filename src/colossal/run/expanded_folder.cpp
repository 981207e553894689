#include "colossal/run/expanded_folder.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/json_file.h"
#include "colossal/base/seed.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/hugging_face/weight_folder.h"
#include "colossal/checkpoint/quantized/folder.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/ops/random.h"
#include "colossal/run/exported_folder.h"
#include "colossal/run/external_names.h"
#include "colossal/text/end_tokens.h"
#include "colossal/text/tokenizer.h"

namespace colossal::run {
namespace {

namespace fs = std::filesystem;

constexpr char kExpand[] = "expand";
constexpr double kCovariance = 1e-9;      // factor of transformers' mean_resizing
constexpr int64_t kRowsAtOnce = 1 << 12;  // rows of a table that are in fp64 at a time

/// Calls body(rows in fp64 [n, columns], first row) for the first `count` rows of a table, block by block.
template <class Body>
void for_blocks_of(const at::Tensor& table, int64_t count, const Body& body) {
  for (int64_t first = 0; first < count; first += kRowsAtOnce)
    body(table.narrow(0, first, std::min(kRowsAtOnce, count - first)).to(at::kDouble), first);
}

at::Tensor mean_of_all(const at::Tensor& table, int64_t count) {
  at::Tensor sum = at::zeros({table.size(1)}, at::kDouble);
  for_blocks_of(table, count, [&](const at::Tensor& rows, int64_t) { sum += rows.sum(0); });
  return sum / static_cast<double>(count);
}

/// Adds to `rows` variates whose covariance is kCovariance times that of the first `count` rows of `table`: sums of the
/// centred rows with normal factors have it, whatever the rank of the covariance, which needs no decomposition.
void add_variates(const at::Tensor& rows, const at::Tensor& table, int64_t count, const at::Tensor& mean,
                  uint64_t seed) {
  const double deviation = std::sqrt(kCovariance / static_cast<double>(count));
  for_blocks_of(table, count, [&](const at::Tensor& old, int64_t first_old) {
    const at::Tensor centred = old - mean;
    for (int64_t first = 0; first < rows.size(0); first += kRowsAtOnce) {
      const std::vector<int64_t> size{std::min(kRowsAtOnce, rows.size(0) - first), old.size(0)};
      at::Tensor factors = at::empty(size, at::kDouble);
      ops::fill_normal(factors, {rows.size(0), count}, {first, first_old}, {0, 0}, size, seed, deviation);
      rows.narrow(0, first, size[0]).addmm_(factors, centred);
    }
  });
}

/// The tensors of a folder with a row per token: their names in it, and the tables of which they are copies, whose
/// values they draw.
using Tables = std::map<std::string, std::string>;

Tables tables_in(const checkpoint::WeightSource& files, const models::ModelShape& shape, const std::string& folder) {
  const checkpoint::ExternalNames external = external_names(shape);
  const std::vector<std::string> ours = token_tables(shape);
  Tables tables;
  const auto add = [&](const std::string& name, const std::string& original) {
    if (const auto stored = checkpoint::name_in(files, name, external)) tables[*stored] = original;
  };
  for (const nn::ExternalName& name : external.names) {
    if (std::find(ours.begin(), ours.end(), name.ours) == ours.end()) continue;
    const std::string& original = name.parts.at(0).name;
    add(original, original);
    for (const nn::ExternalCopy& copy : external.copies)
      if (copy.original == original) add(copy.name, original);
  }
  require(!tables.empty(), kExpand, folder, " must hold a model with a table of tokens: got one of architecture ",
          shape.architecture->name, ", which has none");
  for (const auto& [name, original] : tables) {
    const checkpoint::TensorEntry& entry = *files.entries().at(name);
    require(!entry.shape.empty() && entry.shape[0] == shape.vocabulary && at::isFloatingType(entry.dtype), kExpand,
            folder, ": ", printable(name), " must have a row of numbers for each of the ", shape.vocabulary,
            " ids of vocab_size: got ", checkpoint::safetensors_dtype(entry.dtype), " ", at::IntArrayRef(entry.shape));
  }
  return tables;
}

void check_paths(const ExpansionRequest& r) {
  std::error_code ignored;
  const std::string as_folder = "; write it as a folder first: `colossal export --from " + r.from + " --to FOLDER`";
  require(fs::is_directory(r.from, ignored), kExpand, "--from must be a Hugging Face folder: got ", r.from,
          fs::exists(r.from, ignored) ? as_folder : ", which does not exist");
  require(!fs::exists(r.from + "/config.toml", ignored), kExpand, "--from must be a Hugging Face folder: got ", r.from,
          ", a run folder", as_folder);
  require(!fs::exists(r.to, ignored), kExpand, "--to must be a new folder: ", r.to,
          " exists; remove it, or choose another one");
  require(text::has_tokenizer(r.from), kExpand, "--from must hold its tokenizer, to compare the ids: ", r.from,
          " has none; copy the model's tokenizer there");
}

nlohmann::json config_of(const std::string& folder) {
  const nlohmann::json config = read_json_object(folder + "/config.json", kExpand);
  require(!checkpoint::is_quantized(config), kExpand, "--from must not be quantized: config.json of ", folder,
          " has a quantization_config; expand the original model and quantize the result");
  return config;
}

/// Checks that every old id keeps its piece.
void check_pieces(const text::Tokenizer& before, const text::Tokenizer& after) {
  const int64_t count = before.vocabulary_size();
  require(after.vocabulary_size() >= count, kExpand, "the new tokenizer must have the ids of the old one: got ",
          after.vocabulary_size(), " ids, old ", count);
  for (int64_t id = 0; id < count; ++id) {
    const std::string was = before.spelling(id), is = after.spelling(id);
    require(was == is, kExpand, "old ids must keep their pieces: id ", id, " is \"", printable(text::valid_utf8(is)),
            "\" in the new tokenizer and \"", printable(text::valid_utf8(was)),
            "\" in the old one; add the new tokens after the old ones");
  }
}

/// Returns true if both are equal, except for a space in front, which some decoders add.
bool are_same(std::string_view a, std::string_view b) {
  const auto trimmed = [](std::string_view text) { return text.starts_with(' ') ? text.substr(1) : text; };
  return a == b || (a.size() != b.size() && trimmed(a) == trimmed(b));
}

/// Returns the old ids of each new piece; none for a piece that the old tokenizer cannot write.
std::vector<std::vector<int64_t>> sources_of(const text::Tokenizer& part, const text::Tokenizer& after, int64_t first) {
  std::vector<std::vector<int64_t>> sources;
  for (int64_t id = first; id < after.vocabulary_size(); ++id) {
    const std::string piece = after.piece(id);
    std::vector<int64_t> ids = part.encode(piece);
    std::string written;
    bool has_rows = true;
    for (const int64_t old : ids) {
      has_rows &= old < first;
      written += part.piece(old);
    }
    if (!has_rows || !are_same(written, piece)) ids.clear();
    sources.push_back(std::move(ids));
  }
  return sources;
}

/// Returns config.json for the new vocabulary. Ids of the old one stay, because their tokens do.
nlohmann::json expanded_config(nlohmann::json config, const text::Tokenizer& after, int64_t vocabulary) {
  config["vocab_size"] = vocabulary;
  const auto ids = [&](const char* key) {
    const nlohmann::json value = config.value(key, nlohmann::json());
    return value.is_array() ? value : value.is_null() ? nlohmann::json::array() : nlohmann::json::array({value});
  };
  nlohmann::json ends = ids("eos_token_id");
  if (after.end_id() >= 0 && std::find(ends.begin(), ends.end(), after.end_id()) == ends.end()) {
    ends.push_back(after.end_id());
    config["eos_token_id"] = ends.size() == 1 ? ends[0] : ends;
  }
  if (after.begin_id() >= 0) config["bos_token_id"] = after.begin_id();
  return config;
}

/// Writes the files of weights. `grown(name, table)` returns a table with its new rows.
template <class Grown>
void write_weights(const checkpoint::WeightFolder& files, const std::string& to, int64_t vocabulary,
                   const Tables& tables, const Grown& grown) {
  std::vector<checkpoint::WeightFile> written;
  for (const auto& [path, reader] : files.readers()) {
    // An index with one file needs no index: readers look for this name first.
    checkpoint::WeightFile& file = written.emplace_back();
    file.file = files.readers().size() == 1 ? "model.safetensors" : fs::path(path).filename().string();
    for (const auto& [name, entry] : reader->entries()) {
      file.entries.push_back(entry);
      if (tables.contains(name)) file.entries.back().shape[0] = vocabulary;
    }
    checkpoint::sort_entries(file.entries);
    checkpoint::SafetensorsWriter writer(to + "/" + file.file, file.entries, reader->metadata());
    for (const checkpoint::TensorEntry& entry : writer.entries()) {
      const at::Tensor stored = reader->tensor(entry.name);
      writer.write(tables.contains(entry.name) ? grown(entry.name, stored) : stored);
      reader->leave(entry.name);
    }
    writer.finish();
  }
  checkpoint::finish_weight_files(to, written);
}

}  // namespace

std::vector<std::string> new_rows_names() { return {"mean", "all", "drawn"}; }

at::Tensor new_rows_of(const at::Tensor& given, int64_t first, const std::vector<std::vector<int64_t>>& sources,
                       NewRows rows, uint64_t seed) {
  const at::Tensor table = given.reshape({given.size(0), -1});
  const auto count = static_cast<int64_t>(sources.size());
  const at::Tensor mean = mean_of_all(table, first);
  at::Tensor added = mean.expand({count, table.size(1)}).clone();
  if (rows == NewRows::Drawn) add_variates(added, table, first, mean, seed);
  for (int64_t i = 0; rows == NewRows::Mean && i < count; ++i) {
    const std::vector<int64_t>& ids = sources[static_cast<size_t>(i)];
    if (!ids.empty()) added[i].copy_(table.index_select(0, at::tensor(ids, at::kLong)).to(at::kDouble).mean(0));
  }
  std::vector<int64_t> shape = given.sizes().vec();
  shape[0] = count;
  return added.to(given.scalar_type()).reshape(shape);
}

Expanded expand_vocabulary(const ExpansionRequest& r, const models::Registry& models) {
  check_paths(r);
  const nlohmann::json config = config_of(r.from);
  const models::ModelShape shape = models.shape_of(config);
  const auto before = text::make_tokenizer(r.from), after = text::make_tokenizer(r.tokenizer);
  check_pieces(*before, *after);
  const int64_t ids = after->vocabulary_size(), first = std::min(before->vocabulary_size(), shape.vocabulary);
  require(ids > first, kExpand, "the new tokenizer must have an id that the model has no row of: got ", ids,
          " ids, of which the model has all");
  const checkpoint::WeightFolder files(r.from);
  const Tables tables = tables_in(files, shape, r.from);
  const std::vector<std::vector<int64_t>> sources = sources_of(*text::make_part_tokenizer(r.from), *after, first);

  Expanded done{.expansion = {.first = first, .count = ids - first},
                .vocabulary = std::max(ids, shape.vocabulary),
                .unwritable = std::count_if(sources.begin(), sources.end(), [](const auto& of) { return of.empty(); })};
  for (const auto& [name, original] : tables) done.expansion.names.push_back(name);
  create_folder(r.to);
  write_weights(files, r.to, done.vocabulary, tables, [&](const std::string& name, const at::Tensor& table) {
    const uint64_t seed = derive_seed(derive_seed(r.seed, "new rows"), tables.at(name));
    std::vector<at::Tensor> parts{table.narrow(0, 0, first), new_rows_of(table, first, sources, r.rows, seed)};
    if (ids < shape.vocabulary) parts.push_back(table.narrow(0, ids, shape.vocabulary - ids));
    return at::cat(parts);
  });
  write_companions(r.from, r.tokenizer, r.to);
  write_file(r.to + "/" + kExpansionFile, to_json_object(done.expansion).dump(2) + "\n");
  write_file(r.to + "/config.json", expanded_config(config, *after, done.vocabulary).dump(2) + "\n");
  return done;
}

}  // namespace colossal::run
