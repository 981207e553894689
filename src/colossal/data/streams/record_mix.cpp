#include "colossal/data/streams/record_mix.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/base/seed.h"
#include "colossal/data/order.h"
#include "colossal/data/streams/json_lines.h"
#include "colossal/data/texts/stored_tokens.h"
#include "colossal/text/unicode.h"

namespace colossal::data {
namespace {

constexpr size_t kMaxFilesListed = 1000;

}  // namespace

StreamSource StreamSource::open(const std::string& name, const std::string& path, double weight) {
  namespace fs = std::filesystem;
  require(weight > 0 && std::isfinite(weight), "data", "the weight of a source must be a number above 0: got ", weight,
          " of ", name);
  require(text::is_utf8(name), "data", "the name of a source must be UTF-8: got ", printable(name));
  LeftOut left_out;
  StreamSource source{name, weight, record_files(path, &left_out)};
  source.left_out = left_out.notice(path);
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
  if (paths.size() <= kMaxFilesListed) return contents;
  return {{concat(paths.size(), " files"), "checksum " + checksum(all).substr(0, 16)}};
}

int64_t MixPosition::epochs() const {
  int64_t epochs = 0;
  for (const auto& [name, source] : sources) epochs += source.epoch;
  return epochs;
}

int64_t MixPosition::whole_epochs() const {
  const auto by_epoch = [](const auto& a, const auto& b) { return a.second.epoch < b.second.epoch; };
  return sources.empty() ? 0 : std::min_element(sources.begin(), sources.end(), by_epoch)->second.epoch;
}

nlohmann::json MixPosition::encode() const {
  nlohmann::json each = nlohmann::json::object();
  for (const auto& [name, source] : sources) each[name] = source.encode();
  return {{"records", records}, {"sources", each}};
}

MixPosition MixPosition::decode(const nlohmann::json& state) {
  MixPosition position{.records = position_number(state, "records")};
  require(state.contains("sources") && state["sources"].is_object(), "data",
          "the checkpoint's data position is damaged: it does not name its sources");
  for (const auto& [name, source] : state["sources"].items())
    position.sources.emplace(name, SourcePosition::decode(source));
  return position;
}

RecordMix::RecordMix(const std::vector<StreamSource>& sources, const RecordOptions& options)
    : seed_(derive_seed(options.seed, "mix")) {
  require(!sources.empty(), "data", "a stream needs a source");
  std::map<std::string, const StreamSource*> by_name;
  for (const StreamSource& source : sources)
    require(by_name.emplace(source.name, &source).second, "data", "two sources are named ", source.name,
            "; give each its own name");
  double sum = 0;
  for (const auto& [name, source] : by_name) {
    ends_.push_back(sum += source->weight);
    RecordOptions own = options;
    own.seed = derive_seed(options.seed, name);
    names_.push_back(name);
    sources_.emplace_back(source->paths, source->names, own);
  }
  for (double& end : ends_) end /= sum;
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
  for (size_t i = 0; i < sources_.size(); ++i) position.sources.emplace(names_[i], sources_[i].position());
  return position;
}

void RecordMix::seek(const MixPosition& position) {
  for (const auto& [name, source] : position.sources)
    require(std::find(names_.begin(), names_.end(), name) != names_.end(), "data",
            "the checkpoint's data position is of a source ", printable(name), ", which [data] does not name");
  for (const std::string& name : names_)
    require(position.sources.contains(name), "data", "the checkpoint has no data position of the source ", name);
  for (size_t i = 0; i < sources_.size(); ++i) sources_[i].seek(position.sources.at(names_[i]));
  records_ = position.records;
}

std::vector<std::string> RecordMix::take_faults() {
  std::vector<std::string> faults;
  for (RecordSource& source : sources_)
    for (std::string& fault : source.take_faults()) faults.push_back(std::move(fault));
  return faults;
}

}  // namespace colossal::data
