package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// A fileSystem is a kind of file system that is made on a disk.
type fileSystem struct {
	name    string
	mkfs    []string // without the file
	pkg     string   // Debian package of mkfs
	option  string   // kernel option
	size    int64    // bytes
	options []string // of mount, one for each record
	after   string   // of mount after a power cut
	rare    bool     // -require does not require its mkfs
}

// fileSystems are those of nodes' disks; xfs has the smallest size that mkfs accepts.
var fileSystems = []fileSystem{
	{"ext4", []string{"mkfs.ext4", "-q", "-F", "-b", "4096", "-I", "256", "-J", "size=4", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"},
		"e2fsprogs", "CONFIG_EXT4_FS", 32 << 20, []string{"", "commit=1", "nodelalloc"}, "errors=remount-ro", false},
	{"xfs", []string{"mkfs.xfs", "-q", "-f", "-K"}, "xfsprogs", "CONFIG_XFS_FS", 300 << 20, []string{"", "logbsize=256k"}, "nouuid", false},
	{"f2fs", []string{"mkfs.f2fs", "-q", "-f", "-t", "0"}, "f2fs-tools", "CONFIG_F2FS_FS", 64 << 20, []string{"", "fsync_mode=strict"}, "", true},
}

// missing returns what this machine lacks for it; "": nothing. excused is true if -require accepts
// that, since no package has what the kernel lacks.
func (k fileSystem) missing() (reason string, excused bool) {
	// mount(2) loads the module, and otherwise fails since there is no device.
	if err := unix.Mount("none", mounted, k.name, 0, ""); errors.Is(err, unix.ENODEV) {
		return "this kernel lacks " + k.option, true
	}
	if _, err := exec.LookPath(k.mkfs[0]); err != nil {
		return fmt.Sprintf("no %s here: apt-get install %s", k.mkfs[0], k.pkg), k.rare
	}
	return "", false
}

// make makes the file system in a new file.
func (k fileSystem) make(path string) error {
	if err := (blocks{}).store(path, k.size); err != nil {
		return err
	}
	_, err := command(append(k.mkfs, path)...)
	return err
}

// mount mounts the file system by a loop device that ends with the mount.
func (k fileSystem) mount(path, dir, options string) error {
	device, err := attach(path)
	if err != nil {
		return fmt.Errorf("loop device: %w", err)
	}
	defer device.Close()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(device.Name(), dir, k.name, unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount %s: %w", k.name, err)
	}
	return nil
}

// attach makes a loop device of a file. The device is detached when it is neither open nor mounted.
func attach(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	const tries = 100 // another process may take the free device
	for range tries {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, os.NewSyscallError("LOOP_CTL_GET_FREE", err)
		}
		path := fmt.Sprintf("/dev/loop%d", number)
		device, err := os.OpenFile(path, os.O_RDWR, 0)
		if errors.Is(err, os.ErrNotExist) { // in a container, whose /dev is not a devtmpfs
			const major = 7 // LOOP_MAJOR, include/uapi/linux/major.h
			if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(major, uint32(number)))); err != nil {
				return nil, &os.PathError{Op: "mknod", Path: path, Err: err}
			}
			device, err = os.OpenFile(path, os.O_RDWR, 0)
		}
		if err != nil {
			return nil, err
		}
		config := unix.LoopConfig{Fd: uint32(file.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
		err = unix.IoctlLoopConfigure(int(device.Fd()), &config)
		if err == nil {
			return device, nil
		}
		device.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, os.NewSyscallError("LOOP_CONFIGURE", err)
		}
	}
	return nil, errors.New("no loop device is free")
}
