// The activation of the feed-forward layers as a key of [model] and of config.json, for families that leave it open.
#pragma once
#include <string>

#include "colossal/base/fields.h"

namespace colossal::models {

class FolderConfig;

/// The key `activation`: a name that ops::activation() knows.
void activation_field(Fields& f, std::string& activation);

/// What config.json has under `key`, where it is missing `otherwise`. Errors ("model"): one that is none of ours.
std::string read_activation(const FolderConfig& config, const char* key, const char* otherwise);

}  // namespace colossal::models
