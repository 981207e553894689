// How names of tensors are read from the front, for tables of names in other programs.
//
//   std::string rest = "double_blocks.3.img_mlp.0.weight";
//   take(rest, "double_blocks.");                              // true; rest = "3.img_mlp.0.weight"
//   take_number(rest);                                         // 3; rest = "img_mlp.0.weight"
//   renamed(rest, {{"img_mlp.0.", "ff.net.0.proj."}});         // "ff.net.0.proj.weight"
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace colossal::checkpoint {

/// An old begin of a name, and the new one.
using Renamed = std::pair<const char*, const char*>;

/// Takes `begin` off the front of a name, and returns true, if it is there.
bool take(std::string& name, const std::string& begin);
/// Takes a number and the point after it off the front of a name; -1 = there is none.
int64_t take_number(std::string& name);
/// Returns a name with another begin, that of the first row which fits.
std::string renamed(const std::string& name, const std::vector<Renamed>& rows);
/// Returns the number after `begin` that is the largest in `names`, plus 1.
int64_t count_after(const std::vector<std::string>& names, const std::string& begin);

}  // namespace colossal::checkpoint
