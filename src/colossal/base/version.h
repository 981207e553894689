#pragma once

namespace colossal {

/// "0.1.0"
const char* version();

/// The commit that this build was made from, as "3f2a91c0d4e5", with "-dirty" if the sources had changes; empty if the
/// sources were in no repository.
const char* revision();

}  // namespace colossal
