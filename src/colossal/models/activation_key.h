// The activation of the feed-forward layers as a key of [model] and of config.json, for families that do not fix it.
#pragma once
#include <string>

#include "colossal/base/fields.h"

namespace colossal::models {

class FolderConfig;

/// Visits the key `activation`, a name that ops::activation() supports.
void activation_field(Fields& f, std::string& activation);

/// Returns the name of the activation in config.json under `key`, or `otherwise` if the key is missing.
/// Errors ("model"): an activation that ops::activation() does not support.
std::string read_activation(const FolderConfig& config, const char* key, const char* otherwise);

}  // namespace colossal::models
