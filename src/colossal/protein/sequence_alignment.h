// Global alignment of two sequences.
//
//   for (const auto& [a, b] : protein::align_sequences("MKTAY", "MKAY")) use(a, b);  // (0, 0) (1, 1) (3, 2) (4, 3)
#pragma once
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace colossal::protein {

/// Returns the pairs of residues that stand in one column, in order, also where their letters differ. Equal letters
/// score 4, different ones -1, X 0. A gap scores -5 for its first residue and -1 for each further one; at the ends all
/// score -1 (Gotoh 1982). These suit two structures of one protein: single missing residues are found one by one, and a
/// long stretch of other letters stays in its columns. Of equal scores it takes the pair, else the gap in `b`.
/// Cost: O(|a| |b|) time and bytes; O(|a|) for equal sequences.
/// Errors ("protein"): |a| |b| above 2^32.
std::vector<std::pair<int64_t, int64_t>> align_sequences(std::string_view a, std::string_view b);

}  // namespace colossal::protein
