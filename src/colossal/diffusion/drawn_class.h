// The class that a user names for a picture.
//
//   drawn_class("star", {"circle", "star"}, 2) == 1;   drawn_class("1", {}, 2) == 1;
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace colossal::diffusion {

/// Returns the number of the class of this name, or of this number. `count` is the number of classes, whose `names`
/// may be empty. Errors ("draw"): no such class; the message has the nearest name.
int64_t drawn_class(const std::string& text, const std::vector<std::string>& names, int64_t count);

/// Returns the name of a class; "class 3" if the classes have no names.
std::string class_title(int64_t drawn, const std::vector<std::string>& names);

}  // namespace colossal::diffusion
