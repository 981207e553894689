// Detects the launcher that started this process and reads its ranks and rendezvous address. Pure functions of the
// environment variables.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace colossal::comm {

enum class Launcher { None, Colossal, Torchrun, Slurm, OpenMpi };
const char* to_string(Launcher launcher);

using Variables = std::map<std::string, std::string>;

struct Environment {
  Launcher launcher = Launcher::None;
  int rank = 0, size = 1;
  std::string host;  ///< host of the store
  uint16_t port = 0;
  bool hosted_store = false;  ///< true if the launcher runs the store's server; rank 0 then only connects
  std::string prefix;         ///< prefix of all keys in the store, which separates restarts of one run
  std::string host_name;      ///< name for this host (COLOSSAL_HOST); empty = ask the system
  std::string secret;         ///< secret of the run (COLOSSAL_SECRET) with which ranks sign their messages; if it
                              ///< is empty, signatures keep no process out
};

/// Checks, in this order, for: COLOSSAL_RANK (our own launcher); RANK and WORLD_SIZE (torchrun); OMPI_COMM_WORLD_RANK
/// (mpirun); SLURM_PROCID in a step of several tasks (srun). A batch script of Slurm, a shell in an allocation and a
/// step of one task are not ranks. MASTER_ADDR and MASTER_PORT take precedence if they are set, except under our own
/// launcher.
///
/// Errors: throws Error("launch", ...) naming the variable that is missing, is not a number or is out of range. Throws
/// for RANK without WORLD_SIZE if there is no other launcher.
Environment read_environment(const Variables& variables);

/// Returns all environment variables of this process.
Variables process_variables();

/// Returns the first host of a Slurm list: "n[01-03,7],m2" -> "n01".
std::string first_host(const std::string& list);

}  // namespace colossal::comm
