#include "colossal/data/record_mix.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/data/json_lines.h"
#include "colossal/data/stored_tokens.h"

namespace colossal::data {
namespace {

constexpr size_t kMostFilesListed = 1000;

}  // namespace

StreamSource StreamSource::open(const std::string& name, const std::string& path, double weight) {
  namespace fs = std::filesystem;
  require(weight > 0, "data", "the weight of a source must be above 0: got ", weight, " of ", name);
  StreamSource source{name, weight, json_lines_files(path)};
  std::error_code failed;
  const bool is_folder = fs::is_directory(path, failed);
  for (const std::string& file : source.paths)
    source.names.push_back(is_folder ? fs::path(file).lexically_relative(path).string()
                                     : fs::path(file).filename().string());
  return source;
}

nlohmann::json StreamSource::contents() const {
  nlohmann::json contents = nlohmann::json::object();
  std::string all;
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::string content = StoredTokens(paths[i], 1).description();
    contents[names[i]] = content;
    all += concat(names[i], "\n", content, "\n");
  }
  if (paths.size() <= kMostFilesListed) return contents;
  return {{concat(paths.size(), " files"), "checksum " + checksum(all).substr(0, 16)}};
}

nlohmann::json MixPosition::encode() const {
  nlohmann::json list = nlohmann::json::array();
  for (const SourcePosition& source : sources) list.push_back(source.encode());
  return {{"records", records}, {"sources", list}};
}

MixPosition MixPosition::decode(const nlohmann::json& state) {
  MixPosition position{.records = state.at("records")};
  for (const nlohmann::json& source : state.at("sources")) position.sources.push_back(SourcePosition::decode(source));
  return position;
}

RecordMix::RecordMix(const std::vector<StreamSource>& sources, const RecordOptions& options)
    : seed_(derive_seed(options.seed, "mix")) {
  require(!sources.empty(), "data", "a stream needs a source");
  double sum = 0;
  for (const StreamSource& source : sources) ends_.push_back(sum += source.weight);
  for (double& end : ends_) end /= sum;
  for (size_t i = 0; i < sources.size(); ++i) {
    RecordOptions own = options;
    own.seed = derive_seed(options.seed, sources[i].name);
    sources_.emplace_back(sources[i].paths, sources[i].names, own);
  }
}

Record RecordMix::next() {
  const double draw = static_cast<double>(derive_seed(seed_, static_cast<uint64_t>(records_)) >> 11) * 0x1p-53;
  const auto found = std::upper_bound(ends_.begin(), ends_.end() - 1, draw) - ends_.begin();
  Record record = sources_[found].next();
  ++records_;
  return record;
}

MixPosition RecordMix::position() const {
  MixPosition position{.records = records_};
  for (const RecordSource& source : sources_) position.sources.push_back(source.position());
  return position;
}

void RecordMix::seek(const MixPosition& position) {
  require(position.records >= 0 && position.sources.size() == sources_.size(), "data",
          "the checkpoint's data position is damaged: ", position.sources.size(), " sources, now ", sources_.size());
  for (size_t i = 0; i < sources_.size(); ++i) sources_[i].seek(position.sources[i]);
  records_ = position.records;
}

std::vector<std::string> RecordMix::take_faults() {
  std::vector<std::string> faults;
  for (RecordSource& source : sources_)
    for (std::string& fault : source.take_faults()) faults.push_back(std::move(fault));
  return faults;
}

}  // namespace colossal::data
