// Cores that this process may use: those it may run on (taskset, cpuset), at most as many as a container's limit of CPU
// time (cgroup, versions 1 and 2) lets it keep busy. A limit of 1.5 cores counts as 2. Read anew at every call, because
// both can change while the process runs; a call costs some file reads, so callers keep the answer.
//
// Files are read by C's functions: streams of C++ crash in a process that holds two copies of the C++ library, as
// Python processes with several extensions do.
#pragma once
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

namespace cb {

// The beginning of a small text file, empty where it cannot be read.
inline std::string small_file(const std::string& path) {
  std::string text(4096, '\0');
  std::FILE* file = std::fopen(path.c_str(), "re");
  text.resize(file ? std::fread(text.data(), 1, text.size(), file) : 0);
  if (file) std::fclose(file);
  return text;
}

// The smallest limit of cores that the cgroups named in `memberships` (the text of /proc/self/cgroup) have under `root`
// (/sys/fs/cgroup), or 0 where none has a limit. A group is limited by its parents too.
inline double cgroup_cores(std::string_view memberships, const std::string& root) {
  double least = 0.0;
  const auto take = [&](const std::string& quota, const std::string& period) {  // "max" and -1 are no limits
    const double most = std::strtod(quota.c_str(), nullptr), each = std::strtod(period.c_str(), nullptr);
    if (most > 0 && each > 0 && (least == 0.0 || most / each < least)) least = most / each;
  };
  while (!memberships.empty()) {
    const size_t end = std::min(memberships.find('\n'), memberships.size());
    const std::string_view line = memberships.substr(0, end);
    memberships.remove_prefix(std::min(end + 1, memberships.size()));
    const size_t first = line.find(':'), second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers(line.substr(first + 1, second - first - 1));
    const bool unified = controllers.empty();
    if (!unified && ("," + controllers + ",").find(",cpu,") == std::string::npos) continue;
    const std::string mount = root + (unified ? "" : "/" + controllers);
    std::string group(line.substr(second + 1));
    for (;;) {
      const std::string folder = mount + (group == "/" ? "" : group);
      if (unified) {  // "200000 100000", or "max 100000"
        const std::string limit = small_file(folder + "/cpu.max");
        if (const size_t space = limit.find(' '); space != limit.npos)
          take(limit.substr(0, space), limit.substr(space));
      } else {
        take(small_file(folder + "/cpu.cfs_quota_us"), small_file(folder + "/cpu.cfs_period_us"));
      }
      const size_t parent = group.rfind('/');
      if (group.size() <= 1 || parent == group.npos) break;
      group.resize(parent);
    }
  }
  return least;
}

inline size_t usable_cores() {
  size_t cores = std::max<size_t>(1, std::thread::hardware_concurrency());
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) cores = static_cast<size_t>(CPU_COUNT(&set));
  const double limit = cgroup_cores(small_file("/proc/self/cgroup"), "/sys/fs/cgroup");
  if (limit > 0) cores = std::min(cores, static_cast<size_t>(std::max(1.0, std::ceil(limit))));
#endif
  return cores;
}

}  // namespace cb
