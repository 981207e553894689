#include "colossal/train/rank_inputs.h"

#include <ATen/ATen.h>
#include <torch/version.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <sstream>

#include "colossal/base/checksum.h"
#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/base/version.h"
#include "colossal/comm/agreement.h"

namespace colossal::train {
namespace {

using nlohmann::json;

using Values = std::vector<std::pair<std::string, std::string>>;

constexpr size_t kMaxNamed = 5;
constexpr size_t kMaxShownBytes = 160, kShownBefore = 40;  // maximum bytes of a shown value, and before a difference
constexpr int64_t kPieceBytes = int64_t{64} << 20;

/// Formats a number of a config in the usual notation: 0.0001 for 1e-04.
std::string readable(const std::string& toml) {
  double number = 0;
  const char* end = toml.data() + toml.size();
  if (toml.find('e') == std::string::npos) return toml;
  const auto [read, error] = std::from_chars(toml.data(), end, number);
  if (error != std::errc() || read != end) return toml;
  char text[64];
  return {text, std::to_chars(text, text + sizeof text, number, std::chars_format::general).ptr};
}

/// Returns `value`, or if it is long the part around `difference`, the first byte that differs.
std::string shown(const std::string& value, size_t difference) {
  if (value.empty()) return "nothing";
  if (value.size() <= kMaxShownBytes) return printable(value);
  const size_t start = difference > kShownBefore ? difference - kShownBefore : 0;
  return concat(start > 0 ? "..." : "", printable(value.substr(start, kMaxShownBytes)),
                start + kMaxShownBytes < value.size() ? "..." : "");
}

/// Describes the difference if each name has the same value on both ranks.
std::string describe_order(const Values& first, const Values& other, int rank) {
  size_t at = 0;
  while (at + 1 < std::min(first.size(), other.size()) && first[at] == other[at]) ++at;
  return concat("the order of the values differs between rank 0 and rank ", rank, ": number ", at + 1, " is ",
                printable(first[at].first), " on rank 0 and ", printable(other[at].first), " on rank ", rank);
}

/// Describes each name whose value differs: "steps of [training] is 10 on rank 0 and 20 on rank 1".
std::string describe(const comm::TextDifference& difference) {
  const auto first = parse_json(difference.first, "the inputs of rank 0", "run").get<Values>();
  const auto other = parse_json(difference.other, "the inputs of another rank", "run").get<Values>();
  std::map<std::string, std::string> rest(other.begin(), other.end());
  std::string text;
  size_t count = 0;
  const auto see = [&](const std::string& name, const std::string& one, const std::string& two) {
    if (one == two || ++count > kMaxNamed) return;
    const auto ends = std::mismatch(one.begin(), one.end(), two.begin(), two.end());
    const auto at = static_cast<size_t>(ends.first - one.begin());
    text += concat(count > 1 ? ", " : "", printable(name), " is ", shown(one, at), " on rank 0 and ", shown(two, at),
                   " on rank ", difference.rank);
  };
  for (const auto& [name, value] : first) {
    see(name, value, rest[name]);
    rest.erase(name);
  }
  for (const auto& [name, value] : rest) see(name, "", value);
  if (count == 0) return describe_order(first, other, difference.rank);
  return count > kMaxNamed ? concat(text, ", and ", count - kMaxNamed, " more differ") : text;
}

/// Appends the leaves of `traits`, each with its path starting at `name`: "files[0].size".
void add_leaves(const json& traits, const std::string& name, Values& values) {
  if (!traits.is_structured() || traits.empty()) {
    values.emplace_back(concat("`", name, "` of the data"),
                        traits.dump(-1, ' ', false, json::error_handler_t::replace));
    return;
  }
  for (const auto& [key, each] : traits.items())
    add_leaves(each, traits.is_array() ? concat(name, "[", key, "]") : concat(name, name.empty() ? "" : ".", key),
               values);
}

std::string shape_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  return concat("[", join(tensor.sizes()), "] of ", c10::toString(tensor.scalar_type()),
                tensor.requires_grad() ? ", trained" : "");
}

/// Returns the number of ranks of the stage that hold the same part of `tensor`.
int64_t holders_of(const checkpoint::NamedTensor& tensor, const tensor::MeshCoordinates& coordinates, int64_t sharers) {
  int64_t holders = 1;
  for (const tensor::MeshCoordinates::Axis& axis : coordinates.axes())
    if (axis.name != "pipeline" && !tensor.spec.splits_over(axis.name)) holders *= axis.size;
  if (!tensor.part) return holders;
  const int64_t replicas = coordinates.size(tensor::replicas(tensor.spec, coordinates));
  return holders / (sharers == 0 ? replicas : std::min(sharers, replicas));
}

/// Returns a name of the part, equal on two ranks if they hold the same elements in the same order.
std::string part_name(const checkpoint::NamedTensor& tensor, const tensor::MeshCoordinates& coordinates) {
  std::string text = tensor.name;
  const auto add = [&](const std::vector<int64_t>& numbers) {
    for (const int64_t number : numbers) text += concat(" ", number);
  };
  for (const tensor::LocalBox& block : tensor.spec.local_boxes(coordinates))
    for (const auto* numbers : {&block.start, &block.local_start, &block.size}) add(*numbers);
  if (tensor.part) add({tensor.part->first, tensor.part->size});
  return text;
}

uint64_t digest_of(const at::Tensor& value) {
  const at::Tensor flat = value.detach().contiguous().view(-1);
  const int64_t piece = std::max<int64_t>(1, kPieceBytes / static_cast<int64_t>(flat.element_size()));
  std::vector<uint64_t> sums;
  for (int64_t at = 0; at < flat.numel(); at += piece) {
    const at::Tensor here = flat.narrow(0, at, std::min(piece, flat.numel() - at)).cpu();
    sums.push_back(checksum_number(here.const_data_ptr(), here.nbytes()));
  }
  return checksum_number(sums.data(), sums.size() * sizeof(uint64_t));
}

struct PartDigest {
  uint64_t part, values;
};

using PartNames = std::map<uint64_t, std::string>;  // names of parameters by the digest of the part's name

std::string digests_of(const std::vector<checkpoint::NamedTensor>& weights, const tensor::MeshCoordinates& coordinates,
                       int64_t sharers, PartNames& names) {
  std::vector<PartDigest> digests;
  tensor::Held held;
  for (const checkpoint::NamedTensor& t : weights) {
    if (holders_of(t, coordinates, sharers) <= 1) continue;
    const std::string name = part_name(t, coordinates);
    t.value.read_into(held);
    digests.push_back({checksum_number(name.data(), name.size()), digest_of(held.value)});
    names[digests.back().part] = t.name;
  }
  return {reinterpret_cast<const char*>(digests.data()), digests.size() * sizeof(PartDigest)};
}

struct Holder {
  int rank;
  uint64_t values;
};

/// Returns the part that two ranks hold with different values, and the ranks: "PART RANK RANK"; empty = none.
std::string conflict_in(const std::vector<std::string>& ranks) {
  std::map<uint64_t, Holder> seen;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    std::vector<PartDigest> digests(ranks[rank].size() / sizeof(PartDigest));
    std::copy(ranks[rank].begin(), ranks[rank].end(), reinterpret_cast<char*>(digests.data()));
    for (const PartDigest& d : digests) {
      const auto [at, is_new] = seen.try_emplace(d.part, Holder{static_cast<int>(rank), d.values});
      if (!is_new && at->second.values != d.values) return concat(d.part, " ", at->second.rank, " ", rank);
    }
  }
  return "";
}

}  // namespace

std::shared_ptr<comm::Group> group_of_all(comm::World& world) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.make_group("start", ranks);
}

RankInputs program_inputs() {
  return {"run",
          {{"the version", version()},
           {"the source revision", revision()},
           {"the version of LibTorch", TORCH_VERSION},
           {"the compiler", __VERSION__}},
          "start the same program on all ranks"};
}

RankInputs config_inputs(const run::Config& config) {
  RankInputs inputs{"run", {}, "start all ranks with the same config"};
  for (const KeyHelp& key : describe_config(config)) {
    if (key.section == "run" && key.key != "run.folder" && key.key != "run.matmul") continue;
    const std::string name = key.key.substr(key.section.empty() ? 0 : key.section.size() + 1);
    inputs.values.emplace_back(key.section.empty() ? name : concat(name, " of [", key.section, "]"),
                               readable(key.default_value));
  }
  return inputs;
}

RankInputs data_inputs(const json& traits) {
  RankInputs inputs{"data", {}, "give all ranks the same data"};
  add_leaves(traits, "", inputs.values);
  return inputs;
}

RankInputs module_inputs(const ModuleTensors& tensors) {
  RankInputs inputs{"model", {}, "build the same module on all ranks"};
  for (const auto& [name, value] : tensors.parameters)
    inputs.values.emplace_back(concat("the parameter ", name), shape_of(value));
  for (const auto& [name, value] : tensors.buffers)
    inputs.values.emplace_back(concat("the buffer ", name), shape_of(value));
  return inputs;
}

void require_same(comm::Group& ranks, const RankInputs& inputs) {
  const std::string text = json(inputs.values).dump(-1, ' ', false, json::error_handler_t::replace);
  const auto difference = comm::find_difference(ranks, at::kCPU, text);
  if (difference) throw Error(inputs.component, concat(describe(*difference), "; ", inputs.remedy)).mark_on_all_ranks();
}

void require_same_weights(comm::Mesh& mesh, const std::vector<checkpoint::NamedTensor>& weights, int64_t sharers,
                          WeightOrigin origin) {
  if (mesh.world().size() == 1) return;
  comm::Group& ranks = mesh.all();
  PartNames names;
  std::string own;
  comm::agree(ranks, at::kCPU, [&] { own = digests_of(weights, mesh.coordinates(), sharers, names); });
  const std::vector<std::string> all = comm::gather_text(ranks, at::kCPU, 0, own);
  const std::string conflict = comm::broadcast_text(ranks, at::kCPU, 0, conflict_in(all));
  if (conflict.empty()) return;
  std::istringstream words(conflict);
  uint64_t part = 0;
  int one = 0, two = 0;
  words >> part >> one >> two;
  // The error is thrown by a rank that holds the part, because it has the parameter's name.
  comm::agree(ranks, at::kCPU, [&] {
    const auto name = names.find(part);
    require(name == names.end(), "run", "the weights of ", name == names.end() ? "" : name->second,
            " differ between rank ", one, " and rank ", two, ", which hold the same shard of them; ",
            origin == WeightOrigin::Read
                ? "give all ranks the same checkpoint or folder of [model] from"
                : "the processors of these ranks generate different random numbers: start from weights that were "
                  "exported once (model.from), or use hosts of one kind");
  });
}

}  // namespace colossal::train
