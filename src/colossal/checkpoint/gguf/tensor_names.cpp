#include "colossal/checkpoint/gguf/tensor_names.h"

#include <string_view>
#include <utility>

#include "colossal/base/error.h"

namespace colossal::checkpoint {
namespace {

/// Returns the ending of `name` after `front`, the name in a row; none unless it is ".weight" or ".bias". If
/// `front` is whole, the ending must be empty.
std::optional<std::string> ending_behind(const std::string& name, const std::string& front, bool is_whole = false) {
  if (name.rfind(front, 0) != 0) return {};
  const std::string ending = name.substr(front.size());
  if (is_whole) return ending.empty() ? std::optional(ending) : std::nullopt;
  if (ending != ".weight" && ending != ".bias") return {};
  return ending;
}

constexpr std::string_view kEntry = "{}";

/// Returns the ending of a folder's name whose front is `pattern`, and the index in place of `{}` if it has one; none
/// if the name does not fit.
std::optional<std::pair<std::string, int64_t>> ending_and_entry(const std::string& name, const std::string& pattern,
                                                                bool is_whole) {
  const size_t hole = pattern.find(kEntry);
  if (hole == std::string::npos) {
    const std::optional<std::string> ending = ending_behind(name, pattern, is_whole);
    return ending ? std::optional(std::pair(*ending, int64_t{-1})) : std::nullopt;
  }
  const size_t end = name.find('.', hole);
  if (name.compare(0, hole, pattern, 0, hole) != 0) return {};
  if (end == std::string::npos || end == hole || end - hole > 6) return {};
  const std::string number = name.substr(hole, end - hole);
  if (number.find_first_not_of("0123456789") != std::string::npos) return {};
  const std::optional<std::string> ending = ending_behind(name.substr(end), pattern.substr(hole + kEntry.size()));
  return ending ? std::optional(std::pair(*ending, static_cast<int64_t>(std::stoll(number)))) : std::nullopt;
}

/// Returns the rest of a layer tensor's name after `front`, a layer number and a dot; none if it has another form.
/// Stores the layer number in `number`.
std::optional<std::string> behind_number(const std::string& name, const std::string& front, std::string& number) {
  if (name.rfind(front, 0) != 0) return {};
  const size_t end = name.find('.', front.size());
  if (end == std::string::npos || end == front.size() || end - front.size() > 6) return {};
  number = name.substr(front.size(), end - front.size());
  if (number.find_first_not_of("0123456789") != std::string::npos) return {};
  return name.substr(end + 1);
}

constexpr char kBlocks[] = "blk.";

}  // namespace

bool is_stack_name(const std::string& name) { return name.find(kEntry) != std::string::npos; }

std::string name_of_entry(std::string name, int64_t entry) {
  return name.replace(name.find(kEntry), kEntry.size(), std::to_string(entry));
}

std::optional<GgufPlace> folder_place(const GgufFamily& family, const std::string& gguf_name,
                                      const formats::GgufFile& file) {
  std::string number;
  const std::optional<std::string> inside = behind_number(gguf_name, kBlocks, number);
  const auto is_there = [&](const std::string& name) {
    for (const formats::GgufTensor& tensor : file.tensors())
      if (tensor.name == name) return true;
    return false;
  };
  for (const GgufName& row : inside ? family.in_block : family.outside) {
    const std::optional<std::string> ending = ending_behind(inside.value_or(gguf_name), row.gguf, row.is_whole);
    if (!ending || (row.unless && is_there(concat(kBlocks, number, ".", row.unless, ".weight")))) continue;
    return GgufPlace{concat(inside ? family.blocks + number + "." : std::string(), row.folder, *ending), row.change};
  }
  return {};
}

std::vector<GgufPlace> gguf_places(const GgufFamily& family, const std::string& folder_name) {
  std::string number;
  std::vector<GgufPlace> places;
  const std::optional<std::string> inside = behind_number(folder_name, family.blocks, number);
  for (const GgufName& row : inside ? family.in_block : family.outside) {
    const auto found = ending_and_entry(inside.value_or(folder_name), row.folder, row.is_whole);
    if (!found || row.is_old) continue;
    places.push_back(
        {concat(inside ? kBlocks + number + "." : std::string(), row.gguf, found->first), row.change, found->second});
    if (row.change != GgufChange::LatentKeys) break;  // the first row is the tensor's, and keys have one of values, too
  }
  return places;
}

int64_t layer_of(const GgufFamily& family, const std::string& folder_name) {
  std::string number;
  return behind_number(folder_name, family.blocks, number) ? std::stoll(number) : -1;
}

}  // namespace colossal::checkpoint
